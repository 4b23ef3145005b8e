"""A folder of tfds (which version, which files of which split) as rows, one per episode: found, and read."""

from __future__ import annotations

import hashlib
import json
import re
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.arguments import TEXT_OR_TEXTS, TEXTS, Kind, takes
from seqlake.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    InvalidMetadataError,
    SeqlakeError,
    UnsafeReferenceError,
)
from seqlake.files.locations import absolute, is_local, join, local_path
from seqlake.files.stores import exists, open_store, read_all
from seqlake.formats.rlds.example import NOTHING, FeatureValues, numbers, parse, steps_of
from seqlake.formats.rlds.features import read
from seqlake.formats.rlds.survey import (
    SPLIT,
    FeatureColumn,
    RecordSurvey,
    Surveyed,
    columns,
    damaged,
    schema,
    survey,
    unique_ids,
)
from seqlake.formats.rlds.tfrecord import TfRecord, records
from seqlake.protocols import Flat, Ints, Mapped
from seqlake.shards.scanned import ScannedDataset, ScannedReader, ScannedShard
from seqlake.spec.findings import Finding
from seqlake.spec.schema import ID, Schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.protocols import Depth, Store
    from seqlake.spec.schema import Schema

FEATURES, INFO = "features.json", "dataset_info.json"
_LOOKED_AT = 10_000  # names of a bucket, to find a version folder
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_PLAIN = re.compile(r"^(?P<dataset>.+)-(?P<split>[^-]+)\.tfrecord-\d{5}-of-\d{5}$")


_CONSTANT = Kind(
    "True, False or a list of columns, as ['action']", lambda value: isinstance(value, bool) or TEXTS.fits(value)
)


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a folder holds `features.json` and `dataset_info.json`, or one folder below it does."""
    try:
        root = absolute(location)
        version_folder(open_store(root, storage=storage), root)
    except UnsafeReferenceError:
        raise  # what it is can be said once that is allowed
    except (SeqlakeError, OSError, ValueError):
        return False
    return True


@takes(split=TEXT_OR_TEXTS.or_none(), keep_constant=_CONSTANT, without=TEXTS)
def scan(
    location: str,
    /,
    *,
    split: str | Collection[str] | None = None,
    storage: Mapping[str, str] | None = None,
    keep_constant: Collection[str] | bool = ("action",),
    without: Collection[str] = (),
) -> RldsDataset:
    """Look at an RLDS dataset; every row is an episode, nothing is converted.

    All records are passed over once, to find their places and lengths and which step features never change within an
    episode: seconds for thousands of episodes on a local disk, where image bytes are not touched; a remote dataset is
    read once in full.

    Args:
        location: The folder of a version (with `features.json`), or the folder above it if there is one version.
        split: One split or several; None for all whose files are there. The column `split` tells them apart.
        storage: Options of the object store, as obstore names them.
        keep_constant: Columns that stay one value a step even if they never change; True for all, False for none.
            Otherwise a constant string becomes a scalar and a constant vector of numbers becomes an embedding.
        without: Paths of features to leave out, as in `steps/observation/depth`.

    Returns:
        A `Readable` with `check`.

    Raises:
        DatasetNotFoundError: No such dataset, split or file.
        InvalidMetadataError: The JSON files cannot be used, or a feature cannot be read.
        CorruptFileError: A file is cut off or damaged; names file and record.

    Example:
        >>> source = scan("bridge_rlds/1.0.0", split="train")  # doctest: +SKIP
        >>> source.schema["action"].dim  # doctest: +SKIP
        7
    """
    root = absolute(location)
    store = open_store(root, storage=storage)
    folder = layout(store, root, split=split)
    place = join(root, folder.folder + FEATURES)
    text = read_all(store.blob(folder.folder + FEATURES))
    features = read(text, location=place, without=without)
    folder = replace(folder, findings=(*folder.findings, *_left_out(without)))
    surveyed = survey(((store.blob(file.path), file.split) for file in folder.files), features)
    step_columns = columns(surveyed, keep_constant=keep_constant)
    source: dict[str, Any] = {
        "format": "rlds",
        **{key: folder.info[key] for key in ("name", "version") if key in folder.info},
    }
    source["features"] = json.loads(text)  # an export says of its features what they were
    logical, mapping = schema(step_columns, surveyed, source=source), _mapping(step_columns)
    parts = [[file.name, file.split, file.digest] for file in surveyed.files]
    return RldsDataset(
        root=join(root, folder.folder),
        schema=logical,
        parts=_shards(surveyed, step_columns, logical),
        state=hashlib.sha256(json.dumps([parts, mapping]).encode()).hexdigest()[:32],
        folder=folder,
        survey=surveyed,
        columns=step_columns,
        things=[*_things(surveyed, step_columns), *(Mapped(source=p, column=None, how=_ASKED) for p in without)],
    )


_ASKED = "it was left out as asked: without"
_HOW = {
    "steps": "a value a step",
    "first": "one value: it never changes within an episode",
    "episode": "a value of the episode",
}


def _things(surveyed: RecordSurvey, columns: Sequence[FeatureColumn]) -> Iterator[Mapped]:
    """What became of each feature, and where id and split come from."""
    unique = unique_ids(surveyed.files)
    yield Mapped(source="ids of the episodes" if unique else "file and number of the record", column=ID)
    yield Mapped(source="splits", column=SPLIT, how=f"as {INFO} names them")
    for column in columns:
        yield Mapped(source=column.feature.path, column=column.name, how=_HOW[column.role])


def _mapping(columns: Sequence[FeatureColumn]) -> list[list[str]]:
    return [[column.name, column.feature.path, column.role, column.feature.dtype] for column in columns]


def _shards(surveyed: RecordSurvey, columns: Sequence[FeatureColumn], logical: Schema) -> list[ScannedShard]:
    """One a file, in the order of `dataset_info.json`."""
    unique, mapping, shards = unique_ids(surveyed.files), _mapping(columns), []
    for file in surveyed.files:
        digest = hashlib.sha256(json.dumps([file.digest, file.split, unique, mapping]).encode()).hexdigest()[:16]
        shards.append(
            ScannedShard(
                key=f"{file.name}#{digest}",
                rows=len(file.steps),
                nbytes=int(file.sizes.sum()),
                reader=partial(RldsReader, file, columns, logical.arrow, file.ids if unique else _numbered(file)),
            )
        )
    return shards


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RldsDataset(ScannedDataset):
    """A scanned RLDS dataset: a `Readable`, `Checked`, `SaysMapping`, picklable; its root is the version's folder.

    Attributes:
        folder: Its files.
        survey: What was learned about them.
        columns: How columns are made of features.
    """

    folder: TfdsFolder
    survey: RecordSurvey
    columns: Sequence[FeatureColumn]

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: missing files, record counts; from depth `rows` on, checksums and steps."""
        yield from self.folder.findings
        for file, named in zip(self.survey.files, self.folder.files, strict=True):
            if named.expected is not None and named.expected != len(file.steps):
                text = f"dataset_info.json says {named.expected} records, the file has {len(file.steps)}"
                yield Finding(code="rlds-record-count", severity="error", message=text, location=file.blob.location)
            if depth != "metadata":
                yield from self._check_records(file)

    def _check_records(self, file: Surveyed) -> Iterator[Finding]:
        location = file.blob.location
        for number, record in enumerate(records(copy(file.blob))):
            if not record.sound:
                text = f"record {number} (byte {record.start}) does not match its checksum"
                yield Finding(code="rlds-checksum", severity="error", message=text, location=location)
                continue
            try:
                example = parse(record.data)
            except CorruptFileError as error:
                text = str(damaged(file.blob, number, record, error))
                yield Finding(code="rlds-record", severity="error", message=text, location=location)
                continue
            for column in self.columns:
                if column.feature.step:
                    yield from _check_steps(column, example.get(column.feature.path, NOTHING), file, number)


def _left_out(without: Collection[str]) -> Iterator[Finding]:
    for path in without:
        text = f"the feature {path!r} was left out as asked"
        yield Finding(code="rlds-left-out", severity="note", message=text, location=FEATURES)


def _check_steps(column: FeatureColumn, values: FeatureValues, file: Surveyed, number: int) -> Iterator[Finding]:
    expected = int(file.steps[number])
    try:
        steps = steps_of(column.feature, values)
        text = "" if steps == expected else f"record {number}: {steps} steps where the episode has {expected}"
    except CorruptFileError as error:
        text = f"record {number}: {error}"
    if text:
        yield Finding(
            code="rlds-steps", severity="error", message=text, location=file.blob.location, column=column.name
        )


def _numbered(file: Surveyed) -> tuple[str, ...]:
    """`<file stem>-<number in the file>`: the stem is the name without `.tfrecord` and the count of shards."""
    stem = file.name.replace(".tfrecord", "").rsplit("-of-", 1)[0]
    return tuple(f"{stem}-{number:05d}" for number in range(len(file.steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """One file that should be there.

    Attributes:
        path: Below the root of the store.
        split: Its split.
        expected: The records it should hold; None where `dataset_info.json` does not say.
    """

    path: str
    split: str
    expected: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TfdsFolder:
    """What `dataset_info.json` and the listing say.

    Attributes:
        folder: Of the version, below the root of the store; empty or ending in a slash.
        info: The content of `dataset_info.json`.
        files: The files that are there, in the order of splits and shards.
        findings: Splits and files that are named and not there.
    """

    folder: str
    info: Mapping[str, object]
    files: tuple[ShardFile, ...]
    findings: tuple[Finding, ...]


def version_folder(store: Store, location: str, /) -> str:
    """The folder of the only version: the location itself, or the one folder below it.

    Raises:
        DatasetNotFoundError: No `features.json` with a `dataset_info.json`, or several versions.
    """
    if exists(store, FEATURES) and exists(store, INFO):
        return ""
    folders = [folder for folder in _folders(store, location) if exists(store, folder + INFO)]
    if len(folders) == 1:
        return folders[0]
    if folders:
        versions = ", ".join(folder.rstrip("/") for folder in folders)
        raise DatasetNotFoundError(
            f"{location} holds several versions: {versions}.", path=location, hint="Name the folder of one of them."
        )
    raise DatasetNotFoundError(f"{location} holds no tfds dataset: {FEATURES} and {INFO} were expected.", path=location)


def _folders(store: Store, location: str) -> list[str]:
    """The folders one level down that hold a `features.json`; never walks through a tree to find them."""
    if is_local(location):
        return sorted(f"{path.parent.name}/" for path in local_path(location).glob(f"*/{FEATURES}"))
    names = (path for path, _ in islice(store.list(), _LOOKED_AT))
    return [path.removesuffix(FEATURES) for path in names if path.count("/") == 1 and path.endswith(f"/{FEATURES}")]


def layout(store: Store, location: str, /, *, split: str | Collection[str] | None) -> TfdsFolder:
    """Find the files of a dataset.

    Args:
        store: Opened at `location`.
        location: For messages.
        split: The splits to read; None for all.

    Raises:
        DatasetNotFoundError: Nothing there, or no file of the splits asked for.
        InvalidMetadataError: `dataset_info.json` cannot be used.
    """
    folder = version_folder(store, location)
    info = _info(store, folder, location)
    present = [path.removeprefix(folder) for path, _ in store.list(folder.rstrip("/"))]
    named = _named(info, present, f"{location.rstrip('/')}/{folder}{INFO}")
    splits = list(dict.fromkeys(file.split for file in named))
    wanted = splits if split is None else [split] if isinstance(split, str) else list(split)
    unknown = [name for name in wanted if name not in splits]
    if unknown:
        raise DatasetNotFoundError(
            f"{location} has no split {unknown[0]!r}; it has {', '.join(splits) or 'none'}.", path=location
        )
    there = set(present)
    files = tuple(
        ShardFile(path=folder + file.path, split=file.split, expected=file.expected)
        for file in named
        if file.split in wanted and file.path in there
    )
    if not files:
        raise DatasetNotFoundError(
            f"{location} holds no file of the splits {', '.join(wanted)}.",
            path=location,
            hint=f"The first one would be {next((f.path for f in named if f.split in wanted), 'a .tfrecord file')}.",
        )
    findings = tuple(_missing([file for file in named if file.split in wanted], there))
    return TfdsFolder(folder=folder, info=info, files=files, findings=findings)


def _info(store: Store, folder: str, location: str) -> dict[str, object]:
    try:
        info = json.loads(read_all(store.blob(folder + INFO)))
    except (ValueError, RecursionError) as error:
        raise InvalidMetadataError(f"{location}: {folder}{INFO} is not JSON: {error}.", path=location) from error
    if not isinstance(info, dict):
        raise InvalidMetadataError(f"{location}: {folder}{INFO} is not a JSON object.", path=location)
    if info.get("fileFormat", "tfrecord") != "tfrecord":
        raise InvalidMetadataError(
            f"{location}: the records are kept as {info['fileFormat']!r}; only 'tfrecord' can be read.",
            path=location,
            hint="Write the dataset again with file_format='tfrecord'.",
        )
    return info


def _named(info: Mapping[str, object], present: list[str], place: str) -> list[ShardFile]:
    splits = info.get("splits")
    if not isinstance(splits, list) or not splits:
        matched = [(name, _PLAIN.match(name)) for name in sorted(present)]
        return [ShardFile(path=name, split=match["split"], expected=None) for name, match in matched if match]
    try:
        return [file for split in splits for file in _of_split(str(info["name"]), split)]
    except (KeyError, OverflowError, ValueError, TypeError, AttributeError) as error:
        raise InvalidMetadataError(f"{place}: the splits cannot be understood ({error!r}).", path=place) from error


def _of_split(dataset: str, split: Mapping[str, object]) -> list[ShardFile]:
    lengths = split.get("shardLengths") or []
    if not isinstance(lengths, list):
        raise TypeError(f"'shardLengths' is {type(lengths).__name__}, no list")
    files = []
    for number, length in enumerate(lengths):
        path = str(split.get("filepathTemplate") or _TEMPLATE)
        shard, total = f"{number:05d}", f"{len(lengths):05d}"
        for word, value in {
            "DATASET": dataset,
            "SPLIT": str(split["name"]),
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": shard,
            "NUM_SHARDS": total,
            "SHARD_X_OF_Y": f"{shard}-of-{total}",
        }.items():
            path = path.replace(f"{{{word}}}", value)
        if "/" in path or "\\" in path or path in {"", ".", ".."}:
            raise ValueError(f"{path!r} is not the name of a file in this folder")
        files.append(ShardFile(path=path, split=str(split["name"]), expected=int(length)))
    return files


def _missing(named: list[ShardFile], there: set[str]) -> list[Finding]:
    findings = []
    for split in dict.fromkeys(file.split for file in named):
        files = [file for file in named if file.split == split]
        absent = [file for file in files if file.path not in there]
        if len(absent) == len(files):
            text = f"{INFO} names the split {split!r}, but none of its {len(files)} files is here"
            findings.append(
                Finding(code="rlds-missing-split", severity="warning", message=text, location=absent[0].path)
            )
        else:
            text = f"{INFO} names this file of the split {split!r}, but it is not here"
            findings += [
                Finding(code="rlds-missing-file", severity="error", message=text, location=file.path) for file in absent
            ]
    return findings


class RldsReader(ScannedReader):
    """Reads episodes of one file; every record that is read is checked against its checksum.

    Args:
        file: What the survey learned about it; one that changed since is `ShardChangedError` when it is read.
        columns: The columns without id and split.
        types: The logical Arrow schema of the dataset.
        ids: [rows] sequence ids.
    """

    most_rows: int | None = 1024

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
