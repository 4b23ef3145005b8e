"""`scan`: an RLDS dataset as rows, one per episode."""

from __future__ import annotations

import hashlib
import json
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CorruptFileError, SeqlakeError, UnsafeReferenceError
from seqlake.files.locations import absolute, join
from seqlake.files.stores import open_store, read_all
from seqlake.formats._arguments import TEXT, TEXT_OR_TEXTS, TEXTS, Kind, takes
from seqlake.formats.rlds.columns import Column, columns, schema
from seqlake.formats.rlds.example import NOTHING, Values, parse
from seqlake.formats.rlds.features import read
from seqlake.formats.rlds.layout import FEATURES, Layout, layout, version_folder
from seqlake.formats.rlds.shard import RldsShard
from seqlake.formats.rlds.survey import Survey, Surveyed, damaged, survey, unique_ids
from seqlake.formats.rlds.tfrecord import records
from seqlake.formats.rlds.values import steps_of
from seqlake.shards.lengths import count_lengths
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.protocols import Depth, Ints
    from seqlake.spec.schema import Schema


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
    found = layout(store, root, split=split)
    place = join(root, found.folder + FEATURES)
    features = read(read_all(store.blob(found.folder + FEATURES)), location=place, without=without)
    found = replace(found, findings=(*found.findings, *_left_out(without)))
    surveyed = survey(((store.blob(file.path), file.split) for file in found.files), features)
    made = columns(surveyed, keep_constant=keep_constant)
    source = {"format": "rlds", **{key: found.info[key] for key in ("name", "version") if key in found.info}}
    return RldsDataset(join(root, found.folder), found, surveyed, made, schema(made, surveyed, source=source))


class RldsDataset:
    """A scanned RLDS dataset: a `Readable`, `Checked` and picklable."""

    def __init__(self, root: str, found: Layout, surveyed: Survey, made: Sequence[Column], logical: Schema, /) -> None:
        self._root = root
        self._layout = found
        self._survey = surveyed
        self._columns = tuple(made)
        self._schema = logical

    @property
    def schema(self) -> Schema:
        """Columns in the order `sequence_id`, `split`, then the features by their paths."""
        return self._schema

    @property
    def root(self) -> str:
        """The folder of the version."""
        return self._root

    @property
    def fingerprint(self) -> str:
        """Hash of the stored checksums of all records, the file names and the columns."""
        parts = [[file.name, file.split, file.digest] for file in self._survey.files]
        return hashlib.sha256(json.dumps([parts, self._mapping()]).encode()).hexdigest()[:32]

    def shards(self) -> list[RldsShard]:
        """One a file, in the order of `dataset_info.json`."""
        types, unique, mapping = self._schema.arrow, unique_ids(self._survey.files), self._mapping()
        made = []
        for file in self._survey.files:
            digest = hashlib.sha256(json.dumps([file.digest, file.split, unique, mapping]).encode()).hexdigest()[:16]
            ids = file.ids if unique else _numbered(file)
            key = f"{file.name}#{digest}"
            made.append(RldsShard(file=file, key=key, columns=self._columns, types=types, ids=ids))
        return made

    @takes(column=TEXT)
    def lengths(self, column: str, /) -> Ints:
        """[rows] T of a column with steps, from the pass that `scan` made; other list columns are read."""
        role = {made.name: made.role for made in self._columns}.get(column)
        if role == "steps":
            return np.concatenate([file.steps for file in self._survey.files])
        return np.concatenate([np.empty(0, np.int64), *(count_lengths(s.open(), column) for s in self.shards())])

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: missing files, record counts; from depth `rows` on, checksums and steps."""
        yield from self._layout.findings
        for file, named in zip(self._survey.files, self._layout.files, strict=True):
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
            for column in self._columns:
                if column.feature.step:
                    yield from _check_steps(column, example.get(column.feature.path, NOTHING), file, number)

    def _mapping(self) -> list[list[str]]:
        return [[column.name, column.feature.path, column.role, column.feature.dtype] for column in self._columns]

    def __repr__(self) -> str:
        rows = sum(len(file.steps) for file in self._survey.files)
        return f"RldsDataset({self._root!r}, {rows} episodes, columns: {', '.join(self._schema.names)})"


def _left_out(without: Collection[str]) -> Iterator[Finding]:
    for path in without:
        text = f"the feature {path!r} was left out as asked"
        yield Finding(code="rlds-left-out", severity="note", message=text, location=FEATURES)


def _check_steps(column: Column, values: Values, file: Surveyed, number: int) -> Iterator[Finding]:
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
