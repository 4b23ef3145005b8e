"""How pyarrow's own scanner is to read shards: with the checks that our reader makes."""

from __future__ import annotations

from typing import Any


def checked_format() -> Any:
    """`pyarrow.dataset.ParquetFileFormat` that compares each page with its checksum."""
    import pyarrow.dataset as ds

    return ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    )
