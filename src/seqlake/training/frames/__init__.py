"""Frames in batches: which are needed, decoded once by several threads, ahead of their use."""
