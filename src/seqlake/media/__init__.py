"""Bytes to arrays: each plug decodes some column types."""
