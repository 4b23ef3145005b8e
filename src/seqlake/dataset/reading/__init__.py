"""Rows of a dataset as SQL, Arrow, pandas, single cells and sequences; nothing is written."""
