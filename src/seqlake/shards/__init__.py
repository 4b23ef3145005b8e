"""One data file of sequences: each plug reads and writes one kind of file."""
