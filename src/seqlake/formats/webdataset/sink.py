"""Writes sequences as tar shards that the webdataset package reads: one sample a sequence, its columns as files."""

from __future__ import annotations

import io
import json
import math
import re
import tarfile
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from seqlake.arguments import whole
from seqlake.errors import ValidationError
from seqlake.files.appearing import STAGED, appear, clear
from seqlake.files.locations import absolute
from seqlake.files.reading import BlobFile
from seqlake.files.stores import list_without_links, open_store
from seqlake.formats._frames import has_frames, picture_bytes, stored_pictures
from seqlake.media import format_of
from seqlake.receipts import by_part
from seqlake.spec.schema import is_binary, is_list, is_text
from seqlake.windows.sources import MediaFiles, place_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from seqlake.protocols import Blob, Store
    from seqlake.spec.schema import Column, Schema

_SHARD_BYTES = 1 << 30
_SPLIT = "split"
_ENDINGS = {"jpeg": "jpg", "tiff": "tif"}
_DONE = re.compile(r"[\w-]+-\d{6}\.tar")
_PIECE = 4 << 20


def create(
    location: str,
    schema: Schema,
    /,
    *,
    shard_bytes: int = _SHARD_BYTES,
    storage: Mapping[str, str] | None = None,
    source_storage: Mapping[str, str] | None = None,
) -> TarSink:
    """Write sequences as tar shards, `shard-000000.tar` and so on, or by their split, `train-000000.tar`.

    A sequence is a sample: `<id>.json` has what is one value, `<id>.<column>.npy` a signal or vector,
    `<id>.<column>.mp4` a file with its own bytes, `<id>.<column>.000012.jpg` a picture of a step.

    Args:
        location: A new folder or URI.
        schema: The columns.
        shard_bytes: A shard is closed once it has so many.
        storage: Options of the object store.
        source_storage: Options of the store that the rows' files lie in.

    Raises:
        ValueError: A setting that makes no sense.

    Example:
        ```python
        sl.convert("data/arm", "export/arm", to="webdataset")
        ```
    """
    whole(1).check("shard_bytes", shard_bytes)
    kept = tuple(name for name in schema.names if name not in dropped(schema))
    return TarSink(
        location=absolute(location),
        schema=schema,
        columns=kept,
        shard_bytes=shard_bytes,
        storage=storage,
        source_storage=source_storage,
    )


def takes_files(schema: Schema, /) -> Collection[str]:
    """All columns: frames and files are written, no references to them."""
    return schema.names


def dropped(schema: Schema, /) -> dict[str, str]:
    """Columns that become no file, with the reason."""
    return {name: why for name, column in schema.items() if (why := _refusal(column))}


def _refusal(column: Column) -> str:
    if column.category == "temporal" and (column.raw or column.deep or column.shape is None):
        return "its steps have no one shape, which an array of numpy needs"
    return ""


def endings(columns: Sequence[str], /) -> dict[str, str]:
    """Column -> the middle of its files' names: lower case, as readers make them, and each its own."""
    names: dict[str, str] = {}
    for column in columns:
        name = re.sub(r"[\s/\\]+", "_", column).lower().strip(".") or "column"
        while name in names.values():
            name += "_"
        names[column] = name
    return names


def key_of(name: str, /) -> str:
    """A sequence's id as the first part of file names: without the dots and slashes that would cut it.

    Example:
        >>> key_of("run.3/a")
        'run%2E3%2Fa'
    """
    return re.sub(r"[%./\\\x00-\x1f]", lambda match: f"%{ord(match[0]):02X}", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TarSink:
    """A `Sink`; picklable.

    Attributes:
        location: The folder to be.
        schema: Of the rows.
        columns: Those that are written.
        shard_bytes: A shard is closed once it has so many.
        storage: Options of the object store; never printed.
        source_storage: Options of the store that the rows' files lie in; never printed.
    """

    location: str
    schema: Schema
    columns: Sequence[str]
    shard_bytes: int
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    source_storage: Mapping[str, str] | None = field(default=None, repr=False)

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> dict[str, Any]:
        """Stage the shards of one part; the same part again replaces itself.

        Returns:
            How many shards of each split.

        Raises:
            ValidationError: A cell that cannot be a file.
        """
        named = MediaFiles.named(root, self.source_storage)
        store = open_store(self.location, storage=self.storage)
        shards: dict[str, int] = {}
        with tempfile.TemporaryDirectory(prefix="seqlake-tar-") as folder, ExitStack() as stack:
            open_ones: dict[str, _Shard] = {}
            for number, (batch, row) in enumerate((one, row) for one in rows for row in range(one.num_rows)):
                split = self._split(batch, row)
                if split not in open_ones:
                    open_ones[split] = stack.enter_context(_Shard(Path(folder) / f"{number}.tar"))
                shard = open_ones[split]
                self._sample(shard, batch, row, f"{part:05d}-{number:08d}", named)
                if shard.nbytes >= self.shard_bytes:
                    self._put(store, part, split, shards, open_ones.pop(split))
            for split, shard in open_ones.items():
                self._put(store, part, split, shards, shard)
        return {"part": part, "shards": shards}

    def _put(self, store: Store, part: int, split: str, shards: dict[str, int], shard: _Shard) -> None:
        shard.close()
        store.put(_part(part, split, shards.get(split, 0)), shard.path)
        shards[split] = shards.get(split, 0) + 1

    def commit(self, receipts: Sequence[object], /) -> None:
        """Give the shards their names, in the order of the parts; on a disk all at once."""
        ordered = by_part(receipts)
        store = open_store(self.location, storage=self.storage)
        counts: dict[str, int] = {}
        names: dict[str, str] = {}
        for one in ordered:
            for split, count in one["shards"].items():
                for number in range(count):
                    names[_part(one["part"], split, number)] = f"{split}-{counts.get(split, 0):06d}.tar"
                    counts[split] = counts.get(split, 0) + 1
        appear(store, self.location, names)
        clear(store, self.location)

    def discard(self) -> None:
        """Remove what was staged, and shards that a commit that failed had named."""
        store = open_store(self.location, storage=self.storage)
        store.delete([path for path, _ in list_without_links(store) if _DONE.fullmatch(path)])
        clear(store, self.location)

    def _split(self, batch: pa.RecordBatch, row: int) -> str:
        if _SPLIT not in self.schema or not is_text(self.schema[_SPLIT].arrow):
            return "shard"
        return re.sub(r"[^A-Za-z0-9_]", "_", batch.column(_SPLIT)[row].as_py() or "shard")

    def _sample(self, shard: _Shard, batch: pa.RecordBatch, row: int, number: str, named: MediaFiles) -> None:
        key_column = self.schema.id
        name = batch.column(key_column)[row].as_py() if key_column is not None else number
        key, files, said = key_of(name), endings(self.columns), {}
        for column in self.columns:
            cell = batch.column(column)[row]
            try:
                if not self._file(shard, f"{key}.{files[column]}", self.schema[column], cell, named):
                    said[column] = _plain(cell.as_py())
            except (ValidationError, ValueError, TypeError) as error:
                raise ValidationError(f"Sequence {name!r}, column {column!r}: {error}") from error
        shard.add(f"{key}.json", json.dumps(said, ensure_ascii=False, allow_nan=True).encode())

    def _file(self, shard: _Shard, name: str, column: Column, cell: pa.Scalar, named: MediaFiles) -> bool:
        """Write a cell as files; whether it is one that is written so, null included."""
        if column.category in {"temporal", "vector"}:
            if cell.is_valid:
                shard.add(f"{name}.npy", _numpy(column, cell))
            return True
        if has_frames(column) and stored_pictures(column):
            for step, picture in enumerate(cell.as_py() or ()):
                if picture is not None:
                    data = picture_bytes(picture, named)
                    shard.add(f"{name}.{step:06d}.{_ending(data[:64], 'bin')}", data)
            return True
        if column.medium is not None:
            self._media(shard, name, cell.as_py(), named)
            return True
        if is_binary(column.arrow):
            if cell.is_valid:
                shard.add(f"{name}.{_ending(cell.as_py()[:64], 'bin')}", cell.as_py())
            return True
        return False

    def _media(self, shard: _Shard, name: str, cell: Any, named: MediaFiles) -> None:
        span = place_of(cell)
        if span is None:
            return
        if span.first or span.count is not None:
            raise ValidationError(
                "it is a part of a video that rows share, and a sample has files of its own.",
                hint="Convert into a dataset of ours first, which cuts such videos by packets.",
            )
        if isinstance(span.data, bytes):
            shard.add(f"{name}.{_ending(span.data[:64], _suffix(span.reference))}", span.data)
            return
        blob = named.blob(span.reference)
        [start] = blob.ranges(np.array([0], np.int64), np.array([min(64, blob.size)], np.int64))
        shard.copy(f"{name}.{_suffix(span.reference) or _ending(bytes(start), 'bin')}", blob)


class _Shard:
    """One tar archive in the making.

    Args:
        path: Its file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by `close`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nbytes(self) -> int:
        """Bytes of it so far."""
        return int(self._archive.offset)

    def add(self, name: str, data: bytes) -> None:
        """Write a file whose bytes are at hand."""
        self._archive.addfile(_info(name, len(data)), io.BytesIO(data))

    def copy(self, name: str, blob: Blob) -> None:
        """Write a file that lies in some store."""
        self._archive.addfile(_info(name, blob.size), io.BufferedReader(BlobFile(blob), _PIECE))

    def close(self) -> None:
        """Finish the archive, once or twice."""
        self._archive.close()


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _numpy(column: Column, cell: pa.ListScalar) -> bytes:
    values = cell.values
    count = len(values)
    while is_list(values.type):
        values = values.flatten()
    if values.null_count:
        raise ValidationError("there are nulls among its numbers, which numpy's format does not hold")
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    shape = (count, *(column.shape or ())) if column.category == "temporal" else (count,)
    if numbers.size != math.prod(shape):
        raise ValidationError(f"{numbers.size} numbers are not {count} steps of {list(shape[1:])}")
    out = io.BytesIO()
    np.save(out, numbers.reshape(shape), allow_pickle=False)
    return out.getvalue()


def _ending(start: bytes, otherwise: str) -> str:
    known = format_of(start)
    return otherwise or "bin" if known is None else _ENDINGS.get(known, known)


def _suffix(reference: str) -> str:
    name = reference.replace("\\", "/").rpartition("/")[2].partition("?")[0]
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    return ending if re.fullmatch(r"[a-z0-9]{1,8}", ending) else ""


def _plain(value: Any) -> Any:
    """A value as JSON holds it."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        raise ValidationError("bytes within lists have no place in JSON")
    return str(value)


def _part(part: int, split: str, number: int) -> str:
    return f"{STAGED}/{part}/{split}-{number}.tar"
