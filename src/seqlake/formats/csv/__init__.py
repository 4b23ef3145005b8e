"""CSV: a file, or a folder of files, whose rows are samples, as a rule the time steps of many sequences."""

from seqlake.formats.csv.scan import matches, scan

__all__ = ["matches", "scan"]
