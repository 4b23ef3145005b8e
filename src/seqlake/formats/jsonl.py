"""JSON lines as MosaicML Streaming stores them: shards of objects with an `index.json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.files.locations import absolute
from seqlake.formats._streaming import texts
from seqlake.formats._streaming.cells import UnheldError
from seqlake.formats._streaming.exporting import exporter
from seqlake.formats._streaming.merging import merge
from seqlake.formats._streaming.packing import WriterSettings, offsets
from seqlake.formats._streaming.records import SampleError, ranged
from seqlake.formats._streaming.scan import first_format, scan
from seqlake.formats._streaming.texts import ENCODINGS, Plain, SplitRecords, columns, dropped, learn
from seqlake.formats._streaming.writing import SampleWriter, begin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from seqlake.formats._streaming.cells import CellEncoding, Options
    from seqlake.formats._streaming.exporting import SampleSink
    from seqlake.formats._streaming.index import Config, IndexedShard
    from seqlake.formats._streaming.stored import ShardFolder
    from seqlake.protocols import Ints

__all__ = ["columns", "create", "dropped", "learn", "matches", "merge", "open_records", "scan", "writer"]
_KINDS: dict[pa.DataType, tuple[Any, ...]] = {pa.string(): (str,), pa.int64(): (int,), pa.float64(): (float, int)}


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
            many samples are in it. `"replace"` removes shards and index of before.
        newline: Ends a line.
        storage: Options of the object store.
        **settings: `compression`, `hashes`, `size_limit`, as in `WriterSettings`.

    Returns:
        A writer with `write(sample)` and `finish()`; best used with `with`.

    Raises:
        DatasetExistsError: Something is at `out`.
        ValueError: A setting that makes no sense.
    """
    packing = packer(columns, {"newline": newline, **settings})
    return begin(absolute(out), packing, mode=mode, storage=storage)


class JsonlRecords(SplitRecords):
    """The samples of one open shard; see `_streaming.records.Records`."""

    def arrays(self, columns: Sequence[str], buffer: NDArray[np.uint8], starts: Ints, stops: Ints, /) -> list[pa.Array]:
        """The cells of samples that lie at these places of a buffer; SampleError."""
        view = buffer.data
        objects = []
        for row, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            try:
                objects.append(self._object(view[start:stop]))
            except SampleError as error:
                error.row = row
                raise
        return [self._column(name, objects) for name in columns]

    def _column(self, name: str, objects: Sequence[dict[str, Any]]) -> pa.Array:
        kind, values = self._encodings[name], []
        texts = kind is ENCODINGS["str"] and dict(self._entry.config.columns)[name] != "str"
        for row, fields in enumerate(objects):
            try:
                values.append(_value(kind, fields.get(name), text=texts))
            except (ValueError, TypeError, LookupError, ArithmeticError) as error:
                unheld = isinstance(error, UnheldError)
                raise SampleError(str(error), row=row, column=name, unheld=unheld) from error
        return pa.array(values, kind.arrow)

    def _object(self, sample: memoryview) -> dict[str, Any]:
        try:
            document = json.loads(str(self._line(sample), "utf-8"))
        except (ValueError, RecursionError) as error:
            raise SampleError(f"it is no JSON ({error})") from error
        if not isinstance(document, dict):
            raise SampleError(f"expected a JSON object, found {type(document).__name__}")
        return document

    def value(self, sample: memoryview, /) -> dict[str, Any]:
        """See `Records`; whatever else the object holds is given too."""
        return self._object(sample)

    def cell(self, column: str, row: int, /) -> memoryview:
        """See `Records`: the value's JSON."""
        start, stop = self.bounds[row : row + 2].tolist()
        return _json(self._object(ranged(self.blob, start, stop)).get(column))


def _json(value: Any) -> memoryview:
    return memoryview(json.dumps(value).encode())


def _value(kind: CellEncoding, value: Any, *, text: bool) -> Any:
    """A value as its column has it; `text`: of a number that the user reads as text."""
    if value is None:
        return None
    if text and isinstance(value, (int, float)):
        return json.dumps(value)
    if kind not in ENCODINGS.values():
        return kind.decode(_json(value))
    kinds = _KINDS[kind.arrow]
    if not isinstance(value, kinds):
        raise UnheldError(f"expected {kinds[0].__name__}, found {type(value).__name__}")
    if kinds[0] is int and not -(1 << 63) <= value < 1 << 63:
        raise UnheldError(f'{str(value)[:80]} does not fit into 64 bits; encodings={{column: "str"}} gives the text')
    return kinds[0](value)


def open_records(entry: IndexedShard, place: ShardFolder, options: Options, /) -> JsonlRecords:
    """The samples of one shard, which is open from now on."""
    return JsonlRecords(entry, place, options)


class JsonlPacker:
    """Packs samples; see `_streaming.packing.Packer`.

    Args:
        config: Columns and settings.
        _given: Not used: values are texts, integers and floats.

    Raises:
        ValueError: Another encoding.
    """

    base = 0
    each = 0

    def __init__(self, config: Config, _given: Mapping[str, CellEncoding], /) -> None:
        self.config = config
        self._plain = Plain(config.columns)

    def sample(self, sample: Mapping[str, Any], /) -> bytes:
        """One sample as it is stored; CellError."""
        return (json.dumps(dict(self._plain.values(sample)), sort_keys=True) + self.config.newline).encode()

    def files(self, samples: Sequence[bytes], /) -> tuple[bytes, bytes]:
        """The files of a shard: its data, and the second file where there is one."""
        return b"".join(samples), offsets([len(one) for one in samples], 0) + self.config.header()


def packer(columns: Mapping[str, str], settings: Mapping[str, Any], /) -> JsonlPacker:
    """The packer of some columns.

    Raises:
        ValueError: A setting that makes no sense.
    """
    chosen = WriterSettings.of("jsonl", settings, newline="\n")
    if not chosen.newline:
        raise ValueError("newline is not empty.")
    return JsonlPacker(chosen.config("json", columns), {})


create: Callable[..., SampleSink] = exporter(packer, texts.plan)
