"""What a valid dataset is: pure, no I/O, nothing heavy imported."""
