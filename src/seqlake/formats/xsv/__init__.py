"""CSV, TSV and XSV as MosaicML Streaming stores them: shards of lines with an `index.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.files.locations import absolute
from seqlake.formats._streaming import texts
from seqlake.formats._streaming.exporting import SampleSink
from seqlake.formats._streaming.merging import merge
from seqlake.formats._streaming.scan import first_format, scan
from seqlake.formats._streaming.texts import dropped
from seqlake.formats._streaming.writing import SampleWriter, begin
from seqlake.formats.xsv import records as layout
from seqlake.formats.xsv.packing import packer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.spec.schema import Schema

__all__ = ["create", "dropped", "layout", "matches", "merge", "scan", "writer"]


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
    made = packer(columns, {"separator": separator, "newline": newline, **settings})
    return begin(absolute(out), made, mode=mode, storage=storage)


def create(
    location: str,
    schema: Schema,
    /,
    *,
    columns: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    storage: Mapping[str, str] | None = None,
    **settings: Any,
) -> SampleSink:
    """Where `convert(..., to="xsv")` writes: a sample for every sequence.

    Args:
        location: The folder.
        schema: The columns.
        columns: Encodings that you choose, by column.
        fill: What stands for nulls, by column; these formats hold none.
        storage: Options of the object store.
        **settings: As for `writer`.

    Raises:
        SchemaMismatchError: `columns` or `fill` name a column that is not there.
        ValueError: A setting that makes no sense.
    """
    sink = SampleSink(
        location=absolute(location),
        schema=schema,
        packer=packer,
        plan=texts.plan_commas if settings.get("separator", ",") == "," else texts.plan,
        columns=columns or {},
        fill=fill or {},
        settings=settings,
        storage=storage,
    )
    sink.check()
    return sink
