"""A readable dataset in, another dataset out, shard by shard."""
