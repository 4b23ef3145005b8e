"""JSON lines as MosaicML Streaming stores them: shards of objects with an `index.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.files.locations import absolute
from seqlake.formats._streaming.creating import Settings
from seqlake.formats._streaming.scan import first_format, scan
from seqlake.formats._streaming.writing import SampleWriter, begin
from seqlake.formats.jsonl import records as layout
from seqlake.formats.jsonl.packing import Packer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["layout", "matches", "scan", "writer"]


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a folder has an `index.json` that begins with a shard of `json`."""
    return first_format(location, storage=storage) == "json"


def writer(
    out: str,
    columns: Mapping[str, str],
    /,
    *,
    newline: str = "\n",
    mode: str = "new",
    storage: Mapping[str, str] | None = None,
    **settings: Any,
) -> SampleWriter:
    """Begin to write samples, one by one; what is written equals the official writer's output, byte for byte.

    Args:
        out: A new or empty folder, as a path or URI.
        columns: Name -> `str`, `int` or `float`.
        mode: `"append"` adds to a folder that is there, or goes on after an interruption: `writer.samples` says how
            many samples are in it.
        newline: Ends a line.
        storage: Options of the object store.
        **settings: `compression`, `hashes`, `size_limit`, as in `Settings`.

    Returns:
        A writer with `write(sample)` and `finish()`; best used with `with`.

    Raises:
        DatasetExistsError: Something is at `out`.
        ValueError: A setting that makes no sense.
    """
    if not newline:
        raise ValueError("newline is not empty.")
    packer = Packer(Settings(newline=newline, **settings).config("json", columns), {})
    return begin(absolute(out), packer, mode=mode, storage=storage)
