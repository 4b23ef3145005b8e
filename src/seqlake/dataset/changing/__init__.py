"""Rows and columns of a dataset deleted, updated, added and renamed, and its references led elsewhere."""
