"""What MDS, XSV and JSONL folders share: one `index.json`, compression, hashes, samples as rows, and writing."""
