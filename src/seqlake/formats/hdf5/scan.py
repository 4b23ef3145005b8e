"""HDF5 files as rows, one per episode: looked at, put into shards, and checked."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake import plugins
from seqlake.abilities import WholeFiles, ability
from seqlake.arguments import TEXTS, takes
from seqlake.errors import CorruptFileError, DatasetNotFoundError, SeqlakeError, UnsafeReferenceError, in_line
from seqlake.files.locations import absolute, is_local, local_path
from seqlake.files.stores import open_store, read_all
from seqlake.formats._mapping import wanted
from seqlake.formats.hdf5.layouts import (
    ENDINGS,
    DeclaredLayout,
    EpisodeNames,
    Hdf5Columns,
    Hdf5Layout,
    PlacedFile,
    columns_of,
    layout_of,
)
from seqlake.formats.hdf5.nodes import MAGIC, Hdf5File, natural
from seqlake.formats.hdf5.reading import SPLIT, Hdf5Episode, Hdf5Reader
from seqlake.shards.scanned import ScannedDataset, ScannedShard
from seqlake.spec.findings import Finding
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import Column, Schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.formats.hdf5.columns import Hdf5Column
    from seqlake.protocols import Blob, Depth, Mapped, Store

_SHARD_BYTES = 256 << 20  # of one file that make a shard, about
_LOOKED_AT = 4096  # names of a folder, to know what it is
_TABLES = (".parquet", ".tfrecord")  # what lies beside is somebody's notes where these are the data
_MOST_NOTES = 16 << 20  # bytes of a JSON beside an episode
_MOST_FINDINGS = 1000


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether it is an HDF5 file, or a folder that holds some and no tables; h5py is not asked."""
    try:
        place = absolute(location)
        if _is_file(place):
            root, name = _in_folder(place)
            return _begins(open_store(root, storage=storage), name)
        store = open_store(place, storage=storage)
        names = [path for path, _ in islice(_listed(place, store), _LOOKED_AT)]
        if any(path.endswith(_TABLES) or posixpath.basename(path) == "mixtrain.json" for path in names):
            return False
        first = next((path for path in names if path.lower().endswith(ENDINGS)), None)
        return first is not None and _begins(store, first)
    except UnsafeReferenceError:
        raise  # what it is can be said once that is allowed
    except (SeqlakeError, OSError, ValueError):
        return False


def _is_file(place: str) -> bool:
    return local_path(place).is_file() if is_local(place) else place.lower().endswith(ENDINGS)


def _in_folder(place: str) -> tuple[str, str]:
    """The folder of a file, and its name."""
    if is_local(place):
        path = local_path(place).resolve()  # who names a link means what it leads to
        return str(path.parent), path.name
    folder, _, name = place.rpartition("/")
    return folder, name


def _begins(store: Store, path: str) -> bool:
    """Whether a file is HDF5: its mark stands at its beginning, or behind a block of the user's own."""
    blob = store.blob(path)
    starts = [0, *(512 << n for n in range(12))] if path.lower().endswith(ENDINGS) else [0]
    for start in starts:
        if start + len(MAGIC) > blob.size:
            break
        if bytes(blob.ranges(np.array([start]), np.array([start + len(MAGIC)]))[0]) == MAGIC:
            return True
    return path.lower().endswith(ENDINGS)  # a damaged one: `scan` says so


def _listed(place: str, store: Store) -> Iterator[tuple[str, int]]:
    """Names of a folder; of this machine those near its top first, since a deep tree takes long to walk."""
    if not is_local(place):
        yield from store.list()
        return
    root, left = local_path(place), [""]
    while left:
        folder = left.pop(0)
        with os.scandir(root / folder) as entries:
            for entry in sorted(entries, key=lambda one: natural(one.name)):
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    left.append(path)
                yield path, 0


@takes(without=TEXTS)
def scan(
    location: str,
    /,
    *,
    map: Mapping[str, Any] | str | os.PathLike[str] | None = None,  # noqa: A002 - the word that all formats have
    episode_ends: str | None = None,
    fps: float | None = None,
    without: Collection[str] = (),
    storage: Mapping[str, str] | None = None,
) -> Hdf5Dataset:
    """Look at HDF5 files; every row is an episode, nothing is converted or copied.

    What is read now are the names in one file, and of files that hold several episodes which these are; all else when
    it is asked for.

    Args:
        location: A file, or a folder of files: a path or URI.
        map: Column -> where it is in the file, as in `{"action": "data/{episode}/actions"}`, for layouts that are not
            known; or a JSON or TOML file of this. `path@name` is an attribute, `path@name#a.b` a value in one that is
            JSON, `file:{stem}.mp4` a file beside. `{episode}` makes each group that fits a sequence; without it each
            file is one.
        episode_ends: Path of a data set [N] of where each episode ends, where data sets hold the steps of all, end to
            end; with `map`.
        fps: Steps per second, where the files do not say it.
        without: Data sets, groups of them, or columns, to leave out, as in `next_obs`.
        storage: Options of the object store.

    Returns:
        A `Readable` with `check` and `mapping`.

    Raises:
        DatasetNotFoundError: No HDF5 file is there.
        InvalidMetadataError: The layout is not known and no `map` declares it, or the `map` does not fit.
        CorruptFileError: The first file, or one that holds several episodes, is damaged.
        UnsafeReferenceError: A link that is needed leaves its file.
        MissingDependencyError: h5py is not installed.

    Example:
        ```python
        sl.scan("aloha/transfer_cube").select("sequence_id", "action", "qpos")
        sl.scan("demos.hdf5", map={"action": "data/{episode}/actions"}, fps=20)
        ```
    """
    plugins.require("h5py", extra="hdf5")
    folder = _Folder.of(absolute(location), storage)
    if episode_ends is not None and map is None:
        raise ValueError("episode_ends says where the episodes of a `map` end: give both.")
    declared = None if map is None else DeclaredLayout(wanted(map), episode_ends, fps)
    return folder.dataset(declared, fps=fps, without=list(without))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Folder:
    """The files of a place."""

    root: str
    store: Store
    storage: Mapping[str, str] | None = field(repr=False)
    files: Sequence[PlacedFile]
    sizes: Mapping[str, int]
    single: bool

    @staticmethod
    def of(place: str, storage: Mapping[str, str] | None) -> _Folder:
        if _is_file(place):
            root, name = _in_folder(place)
            store = open_store(root, storage=storage)
            folder = [path for path, _ in islice(_listed(root, store), _LOOKED_AT)]
            return _Folder(
                root=root,
                store=store,
                storage=storage,
                files=[PlacedFile(path=name, beside=folder)],
                sizes={},
                single=True,
            )
        store = open_store(place, storage=storage)
        listed = dict(store.list())
        by_folder: dict[str, list[str]] = defaultdict(list)
        paths = sorted((path for path in listed if path.lower().endswith(ENDINGS)), key=natural)
        folders = {posixpath.dirname(path) for path in paths}
        for path in listed:
            inner = posixpath.dirname(path)
            while inner not in folders and inner:
                inner = posixpath.dirname(inner)
            by_folder[inner].append(path)
        if not paths:
            raise DatasetNotFoundError(
                f"{place} holds no HDF5 file (*.hdf5, *.h5).", path=place, hint="Name the folder that they lie in."
            )
        files = [PlacedFile(path=path, beside=by_folder[posixpath.dirname(path)]) for path in paths]
        return _Folder(root=place, store=store, storage=storage, files=files, sizes=listed, single=len(files) == 1)

    def _blobs(self) -> dict[str, Blob]:
        whole = ability(self.store, WholeFiles)
        if whole is not None and self.sizes:
            return {one.path: whole.known(one.path, self.sizes[one.path]) for one in self.files}
        return {one.path: self.store.blob(one.path) for one in self.files}

    def dataset(self, declared: DeclaredLayout | None, *, fps: float | None, without: Sequence[str]) -> Hdf5Dataset:
        try:
            blobs = self._blobs()
        except FileNotFoundError as error:
            if isinstance(error, SeqlakeError):
                raise
            raise DatasetNotFoundError(f"{self.root} holds no {self.files[0].path}.", path=self.root) from None
        names = EpisodeNames.among([one.path for one in self.files], single=self.single)
        layout, rows, first = self._looked_at(declared, blobs, names, fps, without)
        schema = _schema(first, layout, rows)
        shards = list(self._shards(rows, blobs, first, schema))
        return Hdf5Dataset(
            root=self.root,
            schema=schema,
            parts=[shard for shard, _ in shards],
            layout=layout.portable(),
            columns=first,
            listing=[(place, episodes) for _, (place, episodes) in shards],
            blobs=blobs,
            empty=[place.path for place, episodes in rows if not episodes],
            storage=self.storage,
        )

    def _looked_at(
        self,
        declared: DeclaredLayout | None,
        blobs: Mapping[str, Blob],
        names: EpisodeNames,
        fps: float | None,
        without: Sequence[str],
    ) -> tuple[Hdf5Layout, list[tuple[PlacedFile, list[Hdf5Episode]]], Hdf5Columns]:
        """The layout, the rows of every file, and the columns as the first row has them."""
        layout: Hdf5Layout | None = declared
        rows: list[tuple[PlacedFile, list[Hdf5Episode]]] = []
        first: Hdf5Columns | None = None
        for place in self.files:
            if layout is not None and first is not None and not layout.looks:
                rows.append((place, layout.episodes(None, place, names)))
                continue
            with closing(Hdf5File(blobs[place.path], place.path)) as file:
                layout = layout or layout_of(file, place, fps, self._note)
                episodes = layout.episodes(file, place, names)
                rows.append((place, episodes))
                if first is None and episodes:
                    first = columns_of(layout, file, episodes[0], place, without=without)
        if layout is None or first is None:
            raise DatasetNotFoundError(
                f"{self.root}: the {len(self.files)} HDF5 files hold no episode"
                + (" that fits the mapping." if declared else "."),
                path=self.root,
            )
        return layout, rows, first

    def _note(self, path: str) -> bytes:
        return read_all(self.store.blob(path), most=_MOST_NOTES)

    def _shards(
        self,
        rows: Sequence[tuple[PlacedFile, list[Hdf5Episode]]],
        blobs: Mapping[str, Blob],
        first: Hdf5Columns,
        schema: Schema,
    ) -> Iterator[tuple[ScannedShard, tuple[PlacedFile, Sequence[Hdf5Episode]]]]:
        """One a file, or several of a large one."""
        described = repr([[str(one.source), one.role, one.dtype, one.shape] for one in first.columns.values()])
        described += repr([[column.name, str(column.logical)] for column in schema.values()])
        named = [column.source for column in first.columns.values() if column.source.file]
        for place, episodes in rows:
            there = frozenset(place.beside) if named else frozenset[str]()
            blob = blobs[place.path]
            each = max(1, _SHARD_BYTES * len(episodes) // max(1, blob.size))
            for begin in range(0, len(episodes), each):
                part = episodes[begin : begin + each]
                state = repr([described, blob.size, blob.token, place.path, part])
                digest = hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()[:16]
                paths = (source.filled(episode.values) for source in named for episode in part)
                files = frozenset(path for path in paths if path in there)
                shard = ScannedShard(
                    key=f"{place.path}#{digest}",
                    rows=len(part),
                    nbytes=blob.size * len(part) // max(1, len(episodes)),
                    reader=partial(Hdf5Reader, schema.arrow, blob, place.path, part, first.columns, files),
                )
                yield shard, (place, part)


def _schema(first: Hdf5Columns, layout: Hdf5Layout, rows: Sequence[tuple[PlacedFile, Sequence[Hdf5Episode]]]) -> Schema:
    declared: dict[str, Any] = {}
    if SPLIT not in first.columns and any(episode.split is not None for _, part in rows for episode in part):
        declared[SPLIT] = Column(SPLIT, pa.string())
    declared |= {name: column.column for name, column in first.columns.items()}
    source = {"format": "hdf5", "layout": layout.name, **layout.extra}
    return Schema(declared, metadata=Metadata(extra={"source": source}))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Hdf5Dataset(ScannedDataset):
    """Scanned HDF5 files: a `Readable`, `Checked`, `SaysMapping` and picklable.

    Attributes:
        layout: How they are laid out.
        columns: What of them became which column.
        listing: [shards] the file, and the episodes in it.
        blobs: The files, by path.
        empty: Paths of files that hold no episode.
        storage: Options of the store; never printed.
    """

    layout: Hdf5Layout
    columns: Hdf5Columns
    listing: Sequence[tuple[PlacedFile, Sequence[Hdf5Episode]]]
    blobs: Mapping[str, Blob]
    empty: Sequence[str] = ()
    storage: Mapping[str, str] | None = None

    @property
    def allow_outside(self) -> bool:
        """False: files beside lie below the root."""
        return False

    def mapping(self) -> Sequence[Mapped]:
        """Every data set and attribute of the first episode, and what became of it."""
        return list(self.columns.mapped)

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: what is left out; from depth `rows` on, every episode against the first.

        That is: data sets that are missing or more, types, shapes, lengths, links that leave the file, filters,
        damage.
        """
        for source, why in self.columns.left_out.items():
            if source in self.layout.omitted:
                continue
            asked = why == "left out as asked"
            yield Finding(
                code="hdf5-left-out",
                severity="note" if asked else "warning",
                message=in_line(f"{source}: {why}"),
                location=self.listing[0][0].path if self.listing else "",
            )
        for path in self.empty:
            text = f"it holds no episode in the layout {self.layout.name!r}, which the first file has"
            yield Finding(code="hdf5-no-episode", severity="warning", message=text, location=path)
        if depth == "metadata":
            return
        ends = {place.path: episodes[-1].stop for place, episodes in self.listing}
        for shard, (place, episodes) in zip(self.parts, self.listing, strict=True):
            with closing(shard.open()) as reader:
                assert isinstance(reader, Hdf5Reader)
                for row, episode in enumerate(episodes):
                    yield from islice(self._check_episode(reader, place, row, episode), _MOST_FINDINGS)
                if episodes and episodes[-1].stop is not None:
                    yield from self._left_over(reader, place, episodes, stop=ends[place.path])

    def _check_episode(
        self, reader: Hdf5Reader, place: PlacedFile, row: int, episode: Hdf5Episode
    ) -> Iterator[Finding]:
        lengths: dict[str, int] = {}
        try:
            for column in self.columns.columns.values():
                finding, length = _check_cell(reader, place, row, episode, column)
                if finding is not None:
                    yield finding
                if length is not None and self.layout.alike(column):
                    lengths[column.name] = length
            yield from self._strangers(reader.file, place, episode)
        except SeqlakeError as error:
            yield _finding("hdf5-damaged", "error", error.message, place, episode)
            return
        usual = max(lengths.values(), key=list(lengths.values()).count, default=0)
        for name, length in lengths.items():
            if length not in {usual, -1}:
                text = f"it has {length} steps, where most columns of this episode have {usual}"
                yield _finding("hdf5-length", "error", text, place, episode, name)

    def _left_over(
        self, reader: Hdf5Reader, place: PlacedFile, episodes: Sequence[Hdf5Episode], *, stop: int | None
    ) -> Iterator[Finding]:
        """Steps behind the last episode of data sets that hold those of all."""
        if episodes[-1].stop != stop:
            return  # others come
        for column in self.columns.columns.values():
            try:
                array = reader.array(len(episodes) - 1, column) if column.stepped else None
            except SeqlakeError:
                continue  # it was said of the episode
            if array is not None and stop is not None and array.shape[0] > stop:
                text = f"it has {array.shape[0]} steps, and the last episode ends at {stop}"
                yield _finding("hdf5-length", "warning", text, place, episodes[-1], column.name)

    def _strangers(self, file: Hdf5File, place: PlacedFile, episode: Hdf5Episode) -> Iterator[Finding]:
        if isinstance(self.layout, DeclaredLayout):
            return  # the rest was not asked for
        known = {str(column.source) for column in self.columns.columns.values()} | self.columns.left_out.keys()
        for _, source in self.layout.sources(file, episode):
            if str(source) not in known:
                text = f"{str(source)!r} is no column, since the first episode does not have it"
                yield _finding("hdf5-more", "warning", text, place, episode)


def _check_cell(
    reader: Hdf5Reader, place: PlacedFile, row: int, episode: Hdf5Episode, column: Hdf5Column
) -> tuple[Finding | None, int | None]:
    """What is wrong with one cell, and how many steps it has."""
    try:
        if column.source.file or column.source.attribute:
            there = reader.value(row, column) is not None
        else:
            there = reader.array(row, column) is not None
        if not there:
            text = f"{str(column.source)!r} is not there: the cell is null"
            return _finding("hdf5-missing", "warning", text, place, episode, column.name), None
        if not column.stepped:
            return None, None
        length = reader.length(row, column)
        if length:
            reader.slice(column.name, row, 0, 1)
            reader.slice(column.name, row, length - 1, length)
    except UnsafeReferenceError as error:
        return _finding("hdf5-leaves-file", "error", error.message, place, episode, column.name), None
    except SeqlakeError as error:
        code = "hdf5-cell" if isinstance(error, CorruptFileError) else "hdf5-damaged"
        return _finding(code, "error", error.message, place, episode, column.name), None
    return None, length


def _finding(code: str, severity: Any, text: str, place: PlacedFile, episode: Hdf5Episode, column: str = "") -> Finding:
    return Finding(
        code=code, severity=severity, message=text, location=place.path, sequence_id=episode.id, column=column
    )
