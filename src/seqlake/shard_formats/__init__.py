"""Formats of shards besides Parquet, each called as its files end."""
