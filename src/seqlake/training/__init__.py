"""A readable dataset in, batches out."""

from seqlake.moved import keep_old_paths

keep_old_paths(__name__)
