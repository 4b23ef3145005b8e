"""One TFRecord file as a shard: its rows are episodes, and features become columns.

Names of columns drop `steps/`, `observation/` and `episode_metadata/`; what is left of the path is joined by `_`. A
per-step reward is `reward_step`. Where two features would get one name, all but the one with the shortest path keep
their whole path.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError
from seqlake.formats.rlds.example import NOTHING, FeatureValues, numbers, parse, steps_of
from seqlake.formats.rlds.survey import RecordSurvey, Surveyed, damaged
from seqlake.formats.rlds.tfrecord import TfRecord
from seqlake.protocols import Flat, Ints
from seqlake.shards.scanned import ScannedReader
from seqlake.spec.column_types import ColumnType, Embedding, Image, Trajectory
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Schema
from seqlake.spec.schema import Column as Declared

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.formats.rlds.features import Feature

_DROPPED = ("steps", "observation", "episode_metadata")
SPLIT = "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureColumn:
    """One column and how it is made from a record.

    Attributes:
        name: Its name in the schema.
        feature: What it is read from.
        role: `steps` for one value a step, `first` for the value that all steps share, `episode` for an episode's.
    """

    name: str
    feature: Feature
    role: Literal["steps", "first", "episode"]


def columns(survey: RecordSurvey, *, keep_constant: Collection[str] | bool) -> list[FeatureColumn]:
    """The columns of a dataset in the order of their features, without the id and the split."""
    names = _names(survey.features)
    result = []
    for feature in survey.features:
        name = names[feature.path]
        kept = keep_constant if isinstance(keep_constant, bool) else {name, feature.path} & set(keep_constant)
        # One step proves nothing about a signal; a sentence is worth more as a scalar in any case.
        constant = feature.path in survey.constant and (survey.several or feature.kind == "text") and not kept
        role: Literal["steps", "first", "episode"] = "episode" if not feature.step else "first" if constant else "steps"
        result.append(FeatureColumn(name=name, feature=feature, role=role))
    return result


def schema(chosen: Sequence[FeatureColumn], survey: RecordSurvey, *, source: Mapping[str, object]) -> Schema:
    """The schema: id and split first, then a column for every feature.

    Args:
        chosen: What `columns` gave.
        survey: Says which texts are not UTF-8.
        source: What is known of the dataset; kept in the metadata as `source`, with each column's feature. Typed
            columns carry their feature as `source` themselves.
    """
    declared = {SPLIT: Declared(SPLIT, pa.string(), nullable=False)}
    for column in chosen:
        arrow, column_type = _type(column, binary=column.feature.path in survey.binary)
        declared[column.name] = Declared(column.name, arrow, column_type)
    sources = {column.name: column.feature.path for column in chosen}
    return Schema(declared, metadata=Metadata(extra={"source": {**source, "columns": sources}}))


def _names(features: Sequence[Feature]) -> dict[str, str]:
    names: dict[str, str] = {}
    taken = {ID, SPLIT}
    for path in sorted((feature.path for feature in features), key=lambda path: (path.count("/"), path)):
        name = _short(path)
        if name in taken:
            name = path.replace("/", "_")
        while name in taken:
            name += "_"
        taken.add(name)
        names[path] = name
    return names


def _short(path: str) -> str:
    parts = path.split("/")
    kept = [part for part in parts[:-1] if part not in _DROPPED] + parts[-1:]
    return "reward_step" if path == "steps/reward" else "_".join(kept)


def _type(column: FeatureColumn, *, binary: bool) -> tuple[pa.DataType, ColumnType | None]:
    """The Arrow type of a column, and its column type where it needs one (a plain scalar does not)."""
    feature = column.feature
    details: dict[str, Any] = {"source": feature.path, **feature.details}
    if feature.kind == "text":
        text = pa.binary() if binary else pa.string()
        return (pa.list_(text), None) if column.role == "steps" or feature.many else (text, None)
    if feature.kind == "image":
        if column.role == "steps":
            return pa.list_(pa.binary()), Image(frames="bytes", **details)
        return (pa.list_(pa.binary()) if feature.many else pa.binary()), None
    number = pa.from_numpy_dtype(feature.dtype)
    if len(feature.shape) > 1:
        details["shape"] = list(feature.shape)
    if column.role == "steps":
        signal = Trajectory(dim=feature.size, dtype=number, **details)
        return pa.list_(pa.list_(number, feature.size)), signal
    if not feature.shape:
        number = pa.bool_() if feature.flag else number
        return (pa.list_(number), None) if feature.many else (number, None)
    if feature.many:
        return pa.list_(pa.list_(number, feature.size)), Trajectory(dim=feature.size, dtype=number, **details)
    return pa.list_(number), Embedding(dim=feature.size, dtype=number, **details)


class RldsReader(ScannedReader):
    """Reads episodes of one file; every record that is read is checked against its checksum.

    Args:
        file: What the survey learned about it; one that changed since is `ShardChangedError` when it is read.
        columns: The columns without id and split.
        types: The logical Arrow schema of the dataset.
        ids: [rows] sequence ids.
    """

    most_rows = 1024

    def __init__(
        self, file: Surveyed, columns: Sequence[FeatureColumn], types: pa.Schema, ids: Sequence[str], /
    ) -> None:
        super().__init__(types, len(file.steps), location=file.blob.location, sizes=file.sizes)
        self._file = file
        self._ids = ids
        self._blob = copy(file.blob)  # what is mapped or held goes with the reader
        self._columns = {column.name: column for column in columns}

    def flat(self, column: str, /) -> Flat | None:
        """Where the floats of a step column lie in the file.

        Only for floats (records keep them as packed float32) of files that can be mapped; the checksums of records
        are not looked at on this path.
        """
        self.type_of(column)
        declared, blob = self._columns.get(column), self._blob
        if declared is None or declared.role != "steps" or declared.feature.kind != "tensor" or blob.view() is None:
            return None
        feature = declared.feature
        if feature.encoding != "none" or np.dtype(feature.dtype).kind != "f":
            return None
        starts = np.zeros(self.count, np.int64)
        for row, record in self._records(np.arange(self.count), check=False):
            try:
                values = parse(record.data).get(feature.path, NOTHING)
                self._steps(declared, values, row)
            except CorruptFileError as error:
                raise damaged(blob, row, record, error) from error
            span = values.packed() if values.kind else (0, 0)
            if span is None:
                return None
            starts[row] = record.start + span[0]
        return Flat(
            blob=blob,
            start=starts,
            steps=self._file.steps,
            stride=4 * feature.size,
            stored=np.dtype("<f4"),
            dtype=np.dtype(feature.dtype),
            shape=feature.shape or (1,),
        )

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column with steps, from the survey; None for others."""
        declared = self._columns.get(column)
        return self._file.steps if declared is not None and declared.role == "steps" else None

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some episodes; CorruptFileError for a record that is not what `features.json` says."""
        examples = self._examples(rows) if any(name in self._columns for name in schema.names) else []
        return [self._array(name, rows, examples) for name in schema.names]

    def _records(self, rows: Ints, *, check: bool) -> Iterator[tuple[int, TfRecord]]:
        blob, file = self._blob, self._file
        starts = file.starts[rows]
        stops = starts + file.sizes[rows] + 4
        view = blob.view()
        wholes = blob.ranges(starts, stops) if view is None else [view[a:b] for a, b in zip(starts, stops, strict=True)]
        for row, start, whole in zip(rows.tolist(), starts.tolist(), wholes, strict=True):
            record = TfRecord(start=start, data=whole[:-4], crc=int.from_bytes(whole[-4:], "little"))
            if check and not record.sound:
                raise CorruptFileError(
                    f"Record {row} of {blob.location} (byte {start}) does not match its checksum.",
                    path=blob.location,
                    hint="The file is damaged: fetch it again.",
                )
            yield row, record

    def _examples(self, rows: Ints) -> list[tuple[TfRecord, dict[str, FeatureValues]]]:
        examples = []
        for row, record in self._records(rows, check=True):
            try:
                examples.append((record, parse(record.data)))
            except CorruptFileError as error:
                raise damaged(self._blob, row, record, error) from error
        return examples

    def _array(self, name: str, rows: Ints, examples: list[tuple[TfRecord, dict[str, FeatureValues]]]) -> pa.Array:
        if name == ID:
            return pa.array([self._ids[row] for row in rows.tolist()], pa.string())
        if name == SPLIT:
            return pa.array([self._file.split] * len(rows), pa.string())
        column, arrow = self._columns[name], self.types.field(name).type
        cells = []
        for row, (record, example) in zip(rows.tolist(), examples, strict=True):
            try:
                cells.append(self._cell(column, arrow, example.get(column.feature.path, NOTHING), row))
            except (CorruptFileError, UnicodeDecodeError) as error:
                raise damaged(self._blob, row, record, error) from error
        if column.role == "steps" and column.feature.kind == "tensor":
            return _signal(cells, arrow, column.feature.size)
        return _whole(pa.array(cells, arrow), name)

    def _cell(self, column: FeatureColumn, arrow: pa.DataType, values: FeatureValues, row: int) -> Any:
        feature = column.feature
        if column.role == "steps":
            self._steps(column, values, row)
        if feature.kind == "tensor":
            decoded = numbers(feature, values)
            if column.role == "steps":
                return decoded
            if feature.flag and not feature.shape:
                decoded = decoded != 0
            shaped = decoded.reshape(-1, feature.size) if feature.shape else decoded
            return shaped.tolist() if feature.many else shaped[0] if len(shaped) else None
        cells = values.bytes()
        text = pa.types.is_string(arrow.value_type if pa.types.is_list(arrow) else arrow)
        read = [str(cell, "utf-8") if text else bytes(cell) for cell in cells]
        if column.role == "steps" or feature.many:
            return read
        return read[0] if read else None

    def _steps(self, column: FeatureColumn, values: FeatureValues, row: int) -> None:
        steps, expected = steps_of(column.feature, values), int(self._file.steps[row])
        if steps != expected:
            raise CorruptFileError(f"{column.feature.path!r} has {steps} steps, the episode has {expected}.")


def _signal(cells: list[Any], arrow: pa.ListType, size: int) -> pa.Array:
    offsets = np.fromiter(accumulate((len(cell) // size for cell in cells), initial=0), np.int32, len(cells) + 1)
    values = pa.array(np.concatenate(cells), arrow.value_type.value_type)
    steps = pa.FixedSizeListArray.from_arrays(values, type=arrow.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets), steps, type=arrow)


def _whole(array: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        raise CorruptFileError(f"A cell of column {name!r} is above 2 GiB, which Arrow lists cannot hold.")
    return array
