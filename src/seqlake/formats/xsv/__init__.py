"""CSV, TSV and XSV as MosaicML Streaming stores them: shards of lines with an `index.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.files.locations import absolute
from seqlake.formats._streaming.creating import Settings
from seqlake.formats._streaming.scan import first_format, scan
from seqlake.formats._streaming.writing import SampleWriter, begin
from seqlake.formats.xsv import records as layout
from seqlake.formats.xsv.packing import Packer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["layout", "matches", "scan", "writer"]

_NAMES = {",": "csv", "\t": "tsv"}


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a folder has an `index.json` that begins with a shard of `csv`, `tsv` or `xsv`."""
    return first_format(location, storage=storage) in {"csv", "tsv", "xsv"}


def writer(
    out: str,
    columns: Mapping[str, str],
    /,
    *,
    separator: str = ",",
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
        separator: A comma makes `csv`, a tab `tsv`, anything else `xsv`. Values may not hold it: nothing is quoted.
        newline: Ends a line.
        storage: Options of the object store.
        **settings: `compression`, `hashes`, `size_limit`, as in `Settings`.

    Returns:
        A writer with `write(sample)` and `finish()`; best used with `with`.

    Raises:
        DatasetExistsError: Something is at `out`.
        ValueError: A setting that makes no sense.
    """
    if not separator or not newline:
        raise ValueError("separator and newline are not empty.")
    chosen = Settings(separator=separator, newline=newline, **settings)
    packer = Packer(chosen.config(_NAMES.get(separator, "xsv"), columns), {})
    return begin(absolute(out), packer, mode=mode, storage=storage)
