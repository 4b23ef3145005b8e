"""Contract suites for plugs, and small sample datasets."""
