"""How pyarrow's own scanner is to read shards: with the checks that our reader makes."""

from __future__ import annotations

from typing import Any

_MOST_ELEMENTS = 1 << 17  # of a list in a footer: columns, row groups; memory is taken for as many as it says


def checked_format() -> Any:
    """`pyarrow.dataset.ParquetFileFormat` that compares each page with its checksum, and bounds what footers claim."""
    import pyarrow.dataset as ds

    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True, thrift_container_size_limit=_MOST_ELEMENTS)
    return ds.ParquetFileFormat(default_fragment_scan_options=options)
