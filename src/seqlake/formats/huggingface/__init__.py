"""Hugging Face datasets: Parquet with features, folders of `save_to_disk`, and `datasets.Dataset` objects.

Read without that package. A row is a sample, unless a column `sequence_id` names it; `sequence_id=` and `steps=` put
samples together.
"""

from __future__ import annotations

from seqlake.formats.huggingface.objects import takes
from seqlake.formats.huggingface.scan import column_types, matches, scan
from seqlake.formats.huggingface.writing import create, takes_files

__all__ = ["column_types", "create", "matches", "scan", "takes", "takes_files"]
