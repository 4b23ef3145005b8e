"""One pass over the records, before anything is read: where they lie, how long they are, which columns they make.

The schema depends on the data (a step column that is constant within every sequence becomes one value a row), so it
is decided here, once, for all shards. The pass reads framing and the heads of features; on local files image bytes
are never touched. Checksums of contents are left to the reader.

Names of columns drop `steps/`, `observation/` and `episode_metadata/`; what is left of the path is joined by `_`. A
per-step reward is `reward_step`. Where two features would get one name, all but the one with the shortest path keep
their whole path.
"""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError
from seqlake.formats.rlds.example import NOTHING, FeatureValues, numbers, parse, steps_of
from seqlake.formats.rlds.tfrecord import TfRecord, records
from seqlake.protocols import Ints
from seqlake.spec.column_types import ColumnType, Embedding, Image, Trajectory
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Schema
from seqlake.spec.schema import Column as Declared

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from seqlake.formats.rlds.features import Feature
    from seqlake.protocols import Blob, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surveyed:
    """What was learned about one file.

    Attributes:
        blob: The file.
        split: The split it belongs to.
        starts: [rows] byte at which each record's content begins.
        sizes: [rows] bytes of each content.
        steps: [rows] T.
        ids: [rows] the episode ids; empty where records have none.
        digest: Of all lengths and checksums: other contents, other digest.
    """

    blob: Blob
    split: str
    starts: Ints
    sizes: Ints
    steps: Ints
    ids: Sequence[str]
    digest: str

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.blob.location.replace("\\", "/").rsplit("/", 1)[-1]


@dataclass(slots=True, kw_only=True)
class RecordSurvey:
    """What is known so far of all files.

    Attributes:
        features: What `features.json` declares.
        constant: Paths of step features that never changed within a sequence.
        binary: Paths of texts that are not UTF-8.
        several: A sequence with more than one step was seen, so `constant` means something.
        files: The files, in the order of the dataset.
    """

    features: Sequence[Feature]
    constant: set[str]
    binary: set[str] = field(default_factory=set)
    several: bool = False
    files: list[Surveyed] = field(default_factory=list)


def survey(blobs: Iterable[tuple[Blob, str]], features: Sequence[Feature], /) -> RecordSurvey:
    """Look at every record of every file once.

    Args:
        blobs: (file, its split), in the order of the dataset.
        features: What `features.json` declares.

    Raises:
        CorruptFileError: A file whose framing or a record whose structure is damaged; names file and record.
    """
    gathered = RecordSurvey(features=features, constant={f.path for f in features if may_be_constant(f)})
    gathered.files.extend(_file(blob, split, gathered) for blob, split in blobs)
    return gathered


def may_be_constant(feature: Feature, /) -> bool:
    """Strings and vectors of a step may turn out to say one thing about the whole sequence.

    A single number a step (a reward, a flag) stays a signal even where it never changes.
    """
    return feature.step and (feature.kind == "text" or (feature.kind == "tensor" and len(feature.shape) == 1))


def episode_id(features: Sequence[Feature], /) -> Feature | None:
    """The feature that names an episode, if there is one."""
    for feature in features:
        single = not (feature.step or feature.many or feature.shape)
        if single and feature.path.rsplit("/", 1)[-1] == "episode_id" and feature.dtype not in {"float32", "float64"}:
            return feature
    return None


def _file(blob: Blob, split: str, gathered: RecordSurvey) -> Surveyed:
    starts, sizes, steps, ids, digest = [], [], [], [], hashlib.sha256()
    naming, clock = episode_id(gathered.features), _cheapest(gathered.features)
    for number, record in enumerate(records(blob)):
        try:
            example = parse(record.data)
            length = steps_of(clock, example.get(clock.path, NOTHING))
            if length > 0:
                _compare(example, length, gathered)
            _texts(example, gathered)
            if naming is not None:
                ids.append(_id(naming, example.get(naming.path, NOTHING)))
        except CorruptFileError as error:
            raise damaged(blob, number, record, error) from error
        starts.append(record.start)
        sizes.append(len(record.data))
        steps.append(length)
        digest.update(len(record.data).to_bytes(8, "little") + record.crc.to_bytes(4, "little"))
    return Surveyed(
        blob=copy(blob),  # without the memory that the pass looked at
        split=split,
        starts=np.array(starts, np.int64),
        sizes=np.array(sizes, np.int64),
        steps=np.array(steps, np.int64),
        ids=tuple(ids),
        digest=digest.hexdigest()[:32],
    )


def damaged(blob: Blob, number: int, record: TfRecord, error: Exception, /) -> CorruptFileError:
    """The error for a record that cannot be read, with its place and whether its checksum noticed too."""
    checksum = "" if record.sound else " Its checksum does not match either: the file is damaged."
    return CorruptFileError(
        f"Record {number} of {blob.location} (byte {record.start}) cannot be read: {error}{checksum}",
        path=blob.location,
    )


def _cheapest(features: Sequence[Feature]) -> Feature:
    """The step feature whose values are counted fastest: packed floats, integers, then anything."""
    steps = [feature for feature in features if feature.step]
    plain = [feature for feature in steps if feature.kind == "tensor" and feature.encoding == "none"]
    floats = [feature for feature in plain if feature.dtype.startswith("float")]
    return min(floats or plain or steps, key=lambda feature: feature.size)


def _compare(example: dict[str, FeatureValues], length: int, gathered: RecordSurvey) -> None:
    gathered.several = gathered.several or length > 1
    for feature in gathered.features:
        if feature.path not in gathered.constant:
            continue
        values = example.get(feature.path, NOTHING)
        if feature.kind == "text" or feature.encoding != "none":
            same = len(set(map(bytes, values.bytes()))) <= 1
        else:
            # Compared as bytes: a NaN equals the same NaN.
            rows = numbers(feature, values).reshape(-1, feature.size)
            same = all(row.tobytes() == rows[0].tobytes() for row in rows[1:])
        if not same:
            gathered.constant.discard(feature.path)


def _texts(example: dict[str, FeatureValues], gathered: RecordSurvey) -> None:
    for feature in gathered.features:
        if feature.kind == "text" and not all(map(_utf8, example.get(feature.path, NOTHING).bytes())):
            gathered.binary.add(feature.path)


def _utf8(data: memoryview) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _id(feature: Feature, values: FeatureValues) -> str:
    if feature.kind == "text":
        return "".join(str(text, "utf-8", "replace") for text in values.bytes())
    return "".join(str(number) for number in numbers(feature, values))


def unique_ids(files: Sequence[Surveyed], /) -> bool:
    """Whether the episode ids name every row of all files."""
    ids = list(_all_ids(files))
    return len(ids) == sum(len(file.steps) for file in files) == len(set(ids)) and "" not in ids


def _all_ids(files: Sequence[Surveyed]) -> Iterator[str]:
    for file in files:
        yield from file.ids


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
