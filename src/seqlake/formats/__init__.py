"""Other people's datasets, in and out: each plug is one format."""
