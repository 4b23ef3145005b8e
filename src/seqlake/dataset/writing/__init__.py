"""Values, files and frames become cells, cells become shards of a transaction."""
