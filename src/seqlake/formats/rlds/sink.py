"""Writes sequences as an RLDS dataset that tfds opens: parts are staged, one commit names their files."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from seqlake.arguments import FLAG, MAPPING, TEXT, Kind, takes
from seqlake.errors import ValidationError
from seqlake.files.appearing import STAGED, clear, sweep
from seqlake.files.locations import absolute
from seqlake.files.stores import exists, open_store
from seqlake.formats._frames import frames_of, picture_bytes, stored_pictures
from seqlake.formats.rlds.declaring import Declaration, declarations, refusal, tree
from seqlake.formats.rlds.example import BYTES, INTS, serialized, stored
from seqlake.formats.rlds.scan import FEATURES, INFO
from seqlake.formats.rlds.survey import SPLIT
from seqlake.formats.rlds.tfrecord import framed
from seqlake.media import encode_image, format_of, image
from seqlake.receipts import by_part
from seqlake.spec.schema import is_list, is_text
from seqlake.windows.sources import MediaFiles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.protocols import Store
    from seqlake.spec.schema import Schema

_NAME = re.compile(r"[A-Za-z]\w*")
_SPLIT = re.compile(r"[A-Za-z0-9_]+")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_IMAGES = Kind("'jpeg' or 'png'", lambda value: value in {"jpeg", "png"})
_IS_VERSION = Kind("a version, as '1.0.0'", lambda value: _VERSION.fullmatch(value) is not None)
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@takes(
    images=_IMAGES,
    version=_IS_VERSION,
    paths=MAPPING.or_none(),
    name=TEXT.or_none(),
    episode_id=FLAG.or_none(),
    flags=FLAG,
    fill=MAPPING.or_none(),
)
def create(
    location: str,
    schema: Schema,
    /,
    *,
    images: str = "jpeg",
    paths: Mapping[str, str] | None = None,
    name: str | None = None,
    version: str = "1.0.0",
    episode_id: bool | None = None,
    flags: bool = True,
    fill: Mapping[str, Any] | None = None,
    storage: Mapping[str, str] | None = None,
    source_storage: Mapping[str, str] | None = None,
) -> RldsSink:
    """Write sequences as an RLDS dataset; videos become pictures.

    Args:
        location: A new folder or URI, which becomes the folder of the version.
        schema: The columns.
        images: The format of frames of videos, and of pictures that are neither JPEG nor PNG.
        paths: Column -> its place in a record, as `{"state": "steps/observation/proprio"}`.
        name: Of the dataset; by default that of the folder, or of the one above where it is a version.
        version: Of the dataset.
        episode_id: Whether ids of rows are written, as `episode_metadata/episode_id`; None: unless the rows came from
            RLDS.
        flags: Write `is_first` and `is_last` where no column says them.
        fill: What stands for a null, by column.
        storage: Options of the object store.
        source_storage: Options of the store that the rows' files lie in.

    Raises:
        SchemaMismatchError: Columns that contradict each other, or no column of steps.
        ValueError: A setting that makes no sense.

    Example:
        ```python
        sl.convert("data/arm", "export/arm/1.0.0", to="rlds", images="png")
        ```
    """
    place = absolute(location)
    called = name or _called(place)
    if not _NAME.fullmatch(called):
        raise ValueError(f"name: expected letters, digits and _, found {called!r}; give name='arm'.")
    for column in fill or ():
        schema[column]
    chosen = declarations(schema, paths=paths or {}, images=images, episode_id=episode_id, flags=bool(flags))
    if not any(one.role == "steps" for one in chosen):
        raise ValueError("An RLDS dataset has steps: there is no column of signals or pictures that could be one.")
    tree({one.feature.path: one.node for one in chosen})  # one below another is told now
    return RldsSink(
        location=place,
        schema=schema,
        chosen=tuple(chosen),
        images=images,
        name=called,
        version=version,
        fill=fill or {},
        storage=storage,
        source_storage=source_storage,
    )


def takes_files(schema: Schema, /) -> Collection[str]:
    """All columns: frames and files are written, no references to them."""
    return schema.names


def dropped(schema: Schema, /) -> dict[str, str]:
    """Columns that a record has no place for, with the reason."""
    reasons = {name: refusal(column) for name, column in schema.items()}
    return {name: why for name, why in reasons.items() if why}


def _called(place: str) -> str:
    *above, last = place.replace("\\", "/").rstrip("/").split("/")
    name = above[-1] if _VERSION.fullmatch(last) and above else last
    return re.sub(r"\W", "_", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RldsSink:
    """A `Sink`; picklable.

    Attributes:
        location: The folder of the version.
        schema: Of the rows.
        chosen: The features.
        images: The format of pictures that are encoded here.
        name: Of the dataset.
        version: Of the dataset.
        fill: What stands for nulls.
        storage: Options of the object store; never printed.
        source_storage: Options of the store that the rows' files lie in; never printed.
    """

    location: str
    schema: Schema
    chosen: Sequence[Declaration]
    images: str
    name: str
    version: str
    fill: Mapping[str, Any]
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    source_storage: Mapping[str, str] | None = field(default=None, repr=False)

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> dict[str, Any]:
        """Stage the records of one part, a file for each split; the same part again replaces itself.

        Returns:
            For each split how many records and bytes.

        Raises:
            ValidationError: Columns of one episode with different numbers of steps, nulls, or splits with odd names.
        """
        named = MediaFiles.named(root, self.source_storage)
        store = open_store(self.location, storage=self.storage)
        counts: dict[str, list[int]] = {}
        with tempfile.TemporaryDirectory(prefix="seqlake-rlds-") as folder, ExitStack() as stack:
            files: dict[str, IO[bytes]] = {}
            for batch in rows:
                for row in range(batch.num_rows):
                    split = self._split(batch, row)
                    if split not in files:
                        files[split] = stack.enter_context((Path(folder) / split).open("wb"))
                        counts[split] = [0, 0]
                    record = serialized(self._record(batch, row, named))
                    files[split].write(framed(record))
                    counts[split][0] += 1
                    counts[split][1] += len(record)
            stack.close()
            for split in files:
                store.put(_part(part, split), Path(folder) / split)
        return {"part": part, "counts": counts}

    def commit(self, receipts: Sequence[object], /) -> None:
        """Give the files their names, then write what makes them a dataset."""
        ordered = by_part(receipts)
        store = open_store(self.location, storage=self.storage)
        sweep(store, self.location)
        splits = []
        for split in dict.fromkeys(split for one in ordered for split in one["counts"]):
            parts = [one for one in ordered if split in one["counts"]]
            for number, one in enumerate(parts):
                name = f"{self.name}-{split}.tfrecord-{number:05d}-of-{len(parts):05d}"
                staged = _part(one["part"], split)
                if exists(store, staged):  # else a commit that was interrupted moved it already
                    store.move(staged, name)
            splits.append(
                {
                    "filepathTemplate": _TEMPLATE,
                    "name": split,
                    "numBytes": str(sum(one["counts"][split][1] for one in parts)),
                    "shardLengths": [str(one["counts"][split][0]) for one in parts],
                }
            )
        features = tree({one.feature.path: one.node for one in self.chosen})
        store.put(FEATURES, json.dumps(features, indent=4, sort_keys=True).encode())
        info = {
            "fileFormat": "tfrecord",
            "name": self.name,
            "releaseNotes": {self.version: "Written by seqlake."},
            "splits": splits,
            "version": self.version,
        }
        store.sync("")
        store.put(INFO, json.dumps(info, indent=2, sort_keys=True).encode())
        store.sync("")
        self._clear(store)

    def discard(self) -> None:
        """Remove what was staged, and what a commit that failed had named."""
        self._clear(open_store(self.location, storage=self.storage))

    def _clear(self, store: Store) -> None:
        clear(store, self.location, () if exists(store, INFO) else (FEATURES, f"{self.name}-"))

    def _split(self, batch: pa.RecordBatch, row: int) -> str:
        if SPLIT not in self.schema or not is_text(self.schema[SPLIT].arrow):
            return "train"
        split = batch.column(SPLIT)[row].as_py() or "train"
        if not _SPLIT.fullmatch(split):
            raise ValidationError(
                f"{self._where(batch, row)}: tfds has no split called {split!r}; a name is letters, digits and _."
            )
        return str(split)

    def _where(self, batch: pa.RecordBatch, row: int) -> str:
        key = self.schema.id
        return f"Sequence {batch.column(key)[row].as_py()!r}" if key is not None else f"Row {row} of its batch"

    def _record(self, batch: pa.RecordBatch, row: int, named: MediaFiles) -> dict[str, tuple[int, Any]]:
        where, length = self._where(batch, row), -1
        record: dict[str, tuple[int, Any]] = {}
        for one in self.chosen:
            if one.role != "steps":
                continue
            try:
                steps, record[one.feature.path] = self._steps(one, batch.column(one.column)[row], named)
            except (ValidationError, ValueError) as error:
                raise ValidationError(f"{where}, column {one.column!r}: {error}") from error
            if length not in {-1, steps}:
                raise ValidationError(
                    f"{where}: {one.column!r} has {steps} steps, the columns before it {length}.",
                    hint="An RLDS episode has one clock: seqlake resample first, or leave the column out.",
                )
            length = steps
        for one in self.chosen:
            if one.role in {"first", "last"}:
                marks = np.zeros(length, np.int64)
                marks[: 1 if length else 0] = 1
                record[one.feature.path] = INTS, marks if one.role == "first" else marks[::-1]
            elif one.role != "steps":
                times = length if one.role == "repeated" else 1
                try:
                    record[one.feature.path] = self._single(one, batch.column(one.column)[row], times, named)
                except (ValidationError, ValueError) as error:
                    raise ValidationError(f"{where}, column {one.column!r}: {error}") from error
        return record

    def _steps(self, one: Declaration, cell: pa.Scalar, named: MediaFiles) -> tuple[int, tuple[int, Any]]:
        """How many steps, and their values as a record holds them."""
        if not cell.is_valid:
            raise ValidationError("expected a value for each step, found null")
        if one.feature.kind == "image":
            pictures = list(self._pictures(one, cell, named))
            return len(pictures), (BYTES, pictures)
        if one.feature.kind == "text":
            texts = [_bytes(text) for text in cell.as_py()]
            return len(texts), (BYTES, texts)
        values = _numbers(cell)
        if values.size != len(cell) * one.feature.size:
            raise ValidationError(f"{values.size} numbers in {len(cell)} steps of {list(one.feature.shape)}")
        return len(cell), stored(one.feature, values)

    def _pictures(self, one: Declaration, cell: pa.Scalar, named: MediaFiles) -> Iterator[bytes]:
        column = self.schema[one.column]
        if not stored_pictures(column):
            for frame in frames_of(cell.as_py(), column, named):
                pixels = frame[..., 0] if frame.shape[-1] == 1 else frame
                yield encode_image(pixels, format="png" if pixels.dtype != np.uint8 else self.images)
            return
        for step, picture in enumerate(cell.as_py()):
            if picture is None:
                raise ValidationError(f"step {step} has no picture")
            data = picture_bytes(picture, named)
            if format_of(data[:64]) not in {"jpeg", "png"}:
                pixels = image.decode(data, name=f"step {step}", column=column.type)
                pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
                data = encode_image(pixels, format="png" if pixels.dtype != np.uint8 else self.images)
            if one.checked:
                _compare(data, one, step)
            yield data

    def _single(self, one: Declaration, cell: pa.Scalar, times: int, named: MediaFiles) -> tuple[int, Any]:
        """One value, said so many times."""
        feature = one.feature
        value = cell.as_py() if cell.is_valid else self.fill.get(one.column)
        if value is None and times:
            raise ValidationError(f"records hold no nulls; say what stands for it: fill={{{one.column!r}: ...}}")
        if feature.many and feature.kind != "tensor":
            assert value is not None
            return BYTES, [_bytes(text) for text in value]
        if feature.kind == "text":
            return BYTES, [_bytes(value)] * times if times else []
        if feature.kind == "image":
            return BYTES, [picture_bytes(value, named)] * times
        values = np.zeros((0, feature.size)) if value is None else np.asarray(value).reshape(-1)
        if not feature.many and values.size != feature.size * bool(times):
            raise ValidationError(f"{values.size} numbers, expected {feature.size}")
        return stored(feature, np.tile(values, times))


def _numbers(cell: pa.ListScalar) -> NDArray[Any]:
    values = cell.values
    while is_list(values.type):
        values = values.flatten()
    if values.null_count:
        raise ValidationError("there are nulls among its numbers")
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _compare(data: bytes, one: Declaration, step: int) -> None:
    """See that a picture has the size that is declared."""
    head, declared = image.describe(data), one.node["image"]["shape"]["dimensions"]
    size = None if head is None else [str(head.size[1]), str(head.size[0])]
    if size is not None and any(want not in {"-1", got} for want, got in zip(declared[:2], size, strict=True)):
        raise ValidationError(
            f"the picture of step {step} has {' x '.join(size)} pixels, the column declares {' x '.join(declared[:2])}",
            hint="Mend the column's resolution.",
        )


def _bytes(value: Any) -> bytes:
    if value is None:
        raise ValidationError("expected a text for each step, found null")
    return value if isinstance(value, bytes) else str(value).encode()


def _part(part: int, split: str) -> str:
    return f"{STAGED}/{part}/{split}"
