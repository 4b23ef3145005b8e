"""Stores that are neither a disk, nor a bucket, nor a web server: each plug is named by the scheme of its URIs."""
