"""How pyarrow's own scanner is to read shards: with the checks that our reader makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.errors import SeqlakeError
from seqlake.shards.parquet.expansion import expansion_of
from seqlake.shards.parquet.footer import read_footer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from seqlake.protocols import Blob

NARROW = frozenset({"scalar", "file"})
"""The categories whose cells are a few bytes: what is scanned."""

_MOST_ELEMENTS = 1 << 17  # of a list in a footer: columns, row groups; memory is taken for as many as it says
_MUCH = 256 << 20  # bytes that a row group may take more than its file has
_MOST = 1 << 16  # files that a process remembers
_SCANNABLE: dict[tuple[str, str, tuple[str, ...]], bool] = {}


def checked_format() -> Any:
    """`pyarrow.dataset.ParquetFileFormat` that compares each page with its checksum, and bounds what footers claim."""
    import pyarrow.dataset as ds

    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True, thrift_container_size_limit=_MOST_ELEMENTS)
    return ds.ParquetFileFormat(default_fragment_scan_options=options)


def scannable(blobs: Iterable[Blob], columns: Sequence[str], /) -> bool:
    """Whether columns of local files may be left to pyarrow, which decodes whole row groups however far they expand.

    Args:
        blobs: Parquet files; each is looked at once a process.
        columns: Those that may be asked for.
    """
    try:
        for blob in blobs:
            key = (blob.location, blob.token, tuple(columns))
            if key not in _SCANNABLE:
                while len(_SCANNABLE) >= _MOST:
                    _SCANNABLE.pop(next(iter(list(_SCANNABLE)), key), None)
                _SCANNABLE[key] = _bounded(blob, columns)
            if not _SCANNABLE[key]:
                return False
    except (SeqlakeError, OSError):  # what is wrong, our own reader says
        return False
    return True


def _bounded(blob: Blob, columns: Sequence[str]) -> bool:
    view = blob.view()
    if view is None:
        return False
    footer = read_footer(blob)
    leaves = [leaf for name in columns for leaf in footer.leaves.get(name, ())]
    for group in footer.chunks:
        parts = [expansion_of(footer, group[leaf], view[group[leaf].start : group[leaf].stop]) for leaf in leaves]
        if sum(part.more for part in parts) > _MUCH:
            return False
    return True
