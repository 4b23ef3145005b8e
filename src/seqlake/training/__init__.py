"""A readable dataset in, batches out."""
