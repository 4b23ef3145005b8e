"""Remote shards: byte ranges side by side, whole shards ahead of their use, or only the bytes of windows."""
