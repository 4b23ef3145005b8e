"""Shards, metadata and versions: each plug is one way to commit them."""
