"""Several datasets under one loader: which one each sample comes from, and batches of all of them."""
