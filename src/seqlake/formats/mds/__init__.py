"""MDS: MosaicML Streaming's binary shards with an `index.json`; read and written without its package."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from seqlake.files.locations import absolute
from seqlake.formats._streaming.cells import CellEncoding
from seqlake.formats._streaming.exporting import exporter
from seqlake.formats._streaming.merging import merge
from seqlake.formats._streaming.packing import WriterSettings
from seqlake.formats._streaming.scan import SampleDataset, first_format, scan
from seqlake.formats._streaming.writing import SampleWriter, begin
from seqlake.formats.mds.packing import MdsPacker, packer, plan
from seqlake.formats.mds.records import columns, learn, open_records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from seqlake.formats._streaming.exporting import SampleSink

__all__ = [
    "CellEncoding",
    "SampleDataset",
    "SampleWriter",
    "columns",
    "create",
    "learn",
    "matches",
    "merge",
    "open_records",
    "scan",
    "writer",
]


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a folder has an `index.json` that begins with an MDS shard, or one without shards."""
    return first_format(location, storage=storage) in {"", "mds"}


def writer(
    out: str,
    columns: Mapping[str, str],
    /,
    *,
    mode: str = "new",
    encodings: Mapping[str, CellEncoding] | None = None,
    storage: Mapping[str, str] | None = None,
    **settings: Any,
) -> SampleWriter:
    """Begin to write samples, one by one; what is written equals the official writer's output, byte for byte.

    Args:
        out: A new or empty folder, as a path or URI.
        columns: Name -> encoding, as in `{"tokens": "ndarray:int32", "label": "int"}`.
        mode: `"append"` adds to a folder that is there, or goes on after an interruption: `writer.samples` says how
            many samples are in it. `"replace"` removes shards and index of before.
        encodings: Your own encodings by name.
        storage: Options of the object store.
        **settings: `compression`, `hashes`, `size_limit`, as in `WriterSettings`.

    Returns:
        A writer with `write(sample)` and `finish()`; best used with `with`.

    Raises:
        DatasetExistsError: Something is at `out`.
        ValueError: A setting that makes no sense.
    """
    packer = MdsPacker(WriterSettings.of("mds", settings).config("mds", columns), encodings or {})
    return begin(absolute(out), packer, mode=mode, storage=storage)


create: Callable[..., SampleSink] = exporter(packer, plan)


def __getattr__(name: str) -> Any:
    """The name of 0.1.0, for one release more."""
    if name == "Encoding":
        warnings.warn("seqlake.formats.mds.Encoding is CellEncoding now.", DeprecationWarning, stacklevel=2)
        return CellEncoding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
