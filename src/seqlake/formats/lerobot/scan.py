"""A LeRobot folder as rows, one per episode: looked at, put into shards, and checked."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.abilities import WholeFiles, ability
from seqlake.arguments import TEXTS, takes
from seqlake.errors import DatasetNotFoundError, SeqlakeError, UnsafeReferenceError
from seqlake.files.allowed import OUTSIDE
from seqlake.files.credentials import Storage
from seqlake.files.locations import absolute, join
from seqlake.files.stores import open_store, read_all
from seqlake.formats.lerobot import episodes as listing
from seqlake.formats.lerobot import metadata, videos
from seqlake.formats.lerobot.columns import columns_of, mapped, schema_of, table_of
from seqlake.formats.lerobot.lance import FRAMES, frame_rows, video_blobs
from seqlake.formats.lerobot.layout import INFO, episode_id, fill
from seqlake.formats.lerobot.reading import DataFile, EpisodeReader, PictureFiles
from seqlake.formats.lerobot.videos import compared
from seqlake.media.video.opening import open_video
from seqlake.protocols import Source
from seqlake.shards import parquet
from seqlake.shards.scanned import ScannedDataset, ScannedShard
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.formats.lerobot.columns import LeRobotColumns
    from seqlake.formats.lerobot.episodes import Episodes
    from seqlake.formats.lerobot.lance import FrameRows
    from seqlake.formats.lerobot.metadata import Info
    from seqlake.formats.lerobot.videos import VideoPlaces
    from seqlake.protocols import Blob, Depth, Ints, Mapped, Store
    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.schema import Schema

_MOST_INFO = 256 << 20  # bytes of info.json
_SHARD_BYTES = 64 << 20  # of small files that make one shard
_ASKED_ALONE = 16  # files of a bucket: of more the sizes are listed
_MARK = b"codebase_version"


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a folder holds a `meta/info.json` that names the version of its code."""
    try:
        return _MARK in read_all(open_store(absolute(location), storage=storage).blob(INFO), most=_MOST_INFO)
    except UnsafeReferenceError:
        raise  # what it is can be said once that is allowed
    except (SeqlakeError, OSError, ValueError):
        return False


@takes(without=TEXTS)
def scan(location: str, /, *, without: Collection[str] = (), storage: Mapping[str, str] | None = None) -> LeRobotFolder:
    """Look at a LeRobot folder; every row is an episode, nothing is converted or copied.

    What is read now are `meta/` and the end of one data file; all else when it is asked for.

    Args:
        location: The folder of `meta/info.json`: a path or URI.
        without: Features to leave out, as in `observation.images.wrist`.
        storage: Options of the object store.

    Returns:
        A `Readable` with `check`.

    Raises:
        DatasetNotFoundError: No such dataset, or nothing lists its episodes.
        InvalidMetadataError: What is in `meta/` cannot be used.
        UnsupportedVersionError: Of another version than v2.0, v2.1 and v3.0.
        CorruptFileError: A file of `meta/` is damaged.

    Example:
        ```python
        sl.scan("lerobot/pusht").where("task = 'Push the block'").select("sequence_id", "action")
        ```
    """
    root = absolute(location)
    store = open_store(root, storage=storage)
    text = _info_text(store, root)
    info = metadata.parse(text, location=join(root, INFO))
    episodes, paths = _in_files(listing.read(store, info), info)
    frames = frame_rows(root, info, storage=storage) if info.in_lance else None
    blobs = {} if frames is not None else _blobs(store, list(dict.fromkeys(paths)))
    stored = _stored(blobs.values()) if frames is None else frames.open().schema
    columns = columns_of(info, stored, without=without)
    cameras = {
        name: videos.places(feature.name, episodes, info, column=name) for name, feature in columns.cameras.items()
    }
    schema = schema_of(info, columns, episodes, listing.task_names(store, info))
    place = PictureFiles(
        root=root, storage=storage, allow_outside=storage is not None and Storage(storage).allows(OUTSIDE)
    )
    files = EpisodeFiles(
        info=info,
        episodes=episodes,
        paths=paths,
        blobs=blobs,
        frames=frames,
        columns=columns,
        schema=schema,
        place=place,
    )
    return LeRobotFolder(
        root=root,
        schema=schema,
        parts=list(files.shards(table_of(info, episodes, cameras, schema), hashlib.sha256(text).hexdigest())),
        files=files,
        cameras=cameras,
        films=video_blobs(root, info, storage=storage) if info.in_lance and cameras else {},
    )


def _info_text(store: Store, root: str) -> bytes:
    try:
        return read_all(store.blob(INFO), most=_MOST_INFO)
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error, SeqlakeError):
            raise
        raise DatasetNotFoundError(f"{root} holds no {INFO}, as LeRobot writes it.", path=root) from None


def _in_files(episodes: Episodes, info: Info) -> tuple[Episodes, list[str]]:
    """The episodes in the order of their data files, and the file of each."""
    what = "data_path in meta/info.json"
    if info.shared:
        chunk, number = (episodes.whole(f"data/{one}_index") for one in ("chunk", "file"))
        known: dict[tuple[int, int], str] = {}
        for place in zip(chunk.tolist(), number.tolist(), strict=True):
            if place not in known:
                values = {"chunk_index": max(place[0], 0), "file_index": max(place[1], 0)}
                known[place] = fill(info.data_path, values, what=what)
        paths = [known[place] for place in zip(chunk.tolist(), number.tolist(), strict=True)]
    else:
        paths = [
            fill(info.data_path, {"episode_index": one, "episode_chunk": one // info.chunks_size}, what=what)
            for one in episodes.index.tolist()
        ]
    first = {path: place for place, path in reversed(list(enumerate(paths)))}
    order = np.argsort(np.array([first[path] for path in paths], np.int64), kind="stable")
    if (np.diff(order) == 1).all():
        return episodes, paths
    moved = replace(
        episodes,
        table=episodes.table.take(pa.array(order)),
        index=episodes.index[order],
        length=episodes.length[order],
    )
    return moved, [paths[row] for row in order.tolist()]


def _blobs(store: Store, paths: Sequence[str]) -> dict[str, Blob | None]:
    """The data files; None for those that are not there."""
    whole = ability(store, WholeFiles)
    if whole is not None and len(paths) > _ASKED_ALONE:
        folders = {path.partition("/")[0] if "/" in path else "" for path in paths}
        sizes = {name: size for folder in sorted(folders) for name, size in store.list(folder)}
        return {path: whole.known(path, sizes[path]) if path in sizes else None for path in paths}
    blobs: dict[str, Blob | None] = {}
    for path in paths:
        try:
            blobs[path] = store.blob(path)
        except (FileNotFoundError, NotADirectoryError):
            blobs[path] = None
    return blobs


def _stored(blobs: Any) -> pa.Schema | None:
    """The columns of the first data file that can be opened; None where none can."""
    for blob in blobs:
        if blob is None:
            continue
        try:
            with closing(parquet.open(blob)) as reader:
                return reader.schema
        except (SeqlakeError, OSError):
            continue  # whoever reads it, or checks, meets the error
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeFiles:
    """The data files and what is known of the episodes in them.

    Attributes:
        info: Of the dataset.
        episodes: In the order of the rows.
        paths: [episodes] the data file of each.
        blobs: Path -> file; None where it is not there.
        frames: What stands for the files, where steps are in a table.
        columns: How features are columns.
        schema: Of the dataset.
        place: Where images lie that rows name.
    """

    info: Info
    episodes: Episodes
    paths: Sequence[str]
    blobs: Mapping[str, Blob | None]
    frames: FrameRows | None
    columns: LeRobotColumns
    schema: Schema
    place: PictureFiles = field(repr=False)

    def shards(self, table: pa.Table, digest: str) -> Iterator[ScannedShard]:
        """One a file, or of small files several together."""
        start, held, number = 0, 0, 0
        rows = len(self.episodes)
        while number < rows:
            stop = number
            while stop < rows and self.paths[stop] == self.paths[number]:
                stop += 1
            size = self._file(self.paths[number], np.arange(number, stop), first=0).nbytes
            if start < number and held + size > _SHARD_BYTES:
                yield self._shard(table, start, number, digest)
                start, held = number, 0
            held += size
            number = stop
        if start < rows:
            yield self._shard(table, start, rows, digest)

    def _file(self, path: str, episodes: Ints, *, first: int) -> DataFile:
        """What holds these episodes.

        Args:
            path: The data file that they are listed in.
            episodes: Their places in the list.
            first: Which of them is row 0.
        """
        frames = self.frames
        if frames is not None:
            begins, ends = (self.episodes.whole(f"dataset_{one}_index")[episodes] for one in ("from", "to"))
            frames = frames.part(int(begins.min()), int(ends.max()))
        return DataFile(
            path=path if frames is None else FRAMES,
            blob=self.blobs.get(path),
            rows=episodes - first,
            alone=not self.info.shared,
            frames=frames,
        )

    def _shard(self, table: pa.Table, start: int, stop: int, digest: str) -> ScannedShard:
        counted = Counter(self.paths[start:stop])  # neighbours: the rows are in the order of the files
        numbers, lengths = self.episodes.index[start:stop], self.episodes.length[start:stop]
        files, sizes, at = list[DataFile](), np.zeros(stop - start, np.int64), 0
        for path, count in counted.items():
            rows = np.arange(at, at + count)
            files.append(self._file(path, start + rows, first=start))
            sizes[rows] = files[-1].nbytes * lengths[rows] // max(int(lengths[rows].sum()), 1)
            at += count
        known = table.slice(start, stop - start).take(pa.array(np.arange(stop - start)))
        described = [[column.name, str(column.logical)] for column in self.schema.values()]
        tokens = [[file.path, file.identity] for file in files]
        state = hashlib.sha256(repr([digest, start, stop, tokens, described]).encode())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, known.schema) as stream:
            stream.write_table(known)
        state.update(sink.getvalue())
        reader = partial(
            EpisodeReader,
            self.schema.arrow,
            known,
            numbers.copy(),
            lengths.copy(),
            files,
            self.columns.steps,
            self.place,
            sizes,
        )
        name = files[0].path.rpartition("/")[2]
        nbytes = sum(file.nbytes for file in files)
        return ScannedShard(key=f"{name}#{state.hexdigest()[:16]}", rows=stop - start, nbytes=nbytes, reader=reader)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LeRobotFolder(ScannedDataset):
    """A scanned LeRobot folder: a `Readable`, `Checked`, `HasStorage` and picklable.

    Attributes:
        files: Its data files and episodes.
        cameras: Column -> where its videos lie.
        films: Path -> bytes of videos that lie in a table.
    """

    files: EpisodeFiles
    cameras: Mapping[str, VideoPlaces]
    films: Mapping[str, Blob] = field(default_factory=dict)

    @property
    def info(self) -> Info:
        """What `meta/info.json` says of the dataset."""
        return self.files.info

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Options of its store; never printed."""
        return self.files.place.storage

    @property
    def allow_outside(self) -> bool:
        """Whether references may leave the root."""
        return self.files.place.allow_outside

    def lengths(self, column: str, /) -> Ints:
        """[rows] T as the list of episodes says, which readers compare with what they read."""
        return self.files.episodes.length.copy() if column in self.files.columns.steps else super().lengths(column)

    def mapping(self) -> Sequence[Mapped]:
        """What of the features became which column."""
        return mapped(self.info, self.files.columns)

    def file_within(self, reference: str, /) -> Blob | None:
        """A video that lies in a table; None for any other file."""
        return self.films.get(reference)

    @property
    def decoded_bytes(self) -> int:
        """Of copies of all shards with all columns of steps, about: other than numbers they stay as they are stored."""
        steps, columns = int(self.files.episodes.length.sum()), self.files.columns
        numbers = [one for one in columns.steps.values() if one.stored == "numbers"]
        nbytes = steps * sum(one.size * np.dtype(one.dtype).itemsize for one in numbers)
        if len(numbers) < len(columns.steps):
            nbytes += sum(shard.nbytes for shard in self.parts)
        return nbytes

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: counters, splits, missing data files, videos that do not fit their episodes.

        From depth `rows` on the episodes of every data file are compared with the list of episodes, from depth `files`
        on the frames of every shared video with the times that the list has for them.
        """
        yield from counters(self.info, self.files.episodes)
        yield from self.files.columns.findings
        for places in self.cameras.values():
            yield from places.findings
        yield from (_missing(path) for path, blob in self.files.blobs.items() if blob is None)
        if depth == "metadata":
            return
        yield from self._check_steps()
        if depth != "rows" and self.info.shared:
            yield from self._check_videos()

    def _film(self, store: Store, path: str) -> Blob:
        return self.films[path] if path in self.films else store.blob(path)

    def _check_steps(self) -> Iterator[Finding]:
        for shard in self.parts:
            with closing(shard.open()) as reader:
                assert isinstance(reader, EpisodeReader)
                for path, text in reader.check():
                    yield Finding(code="lerobot-steps", severity="error", message=text, location=path)
                for path, column, text, episode, step in reader.off_the_clock(float(self.info.fps)):
                    yield Finding(
                        code="lerobot-clock",
                        severity="error" if column == "frame_index" else "warning",
                        message=f"{text}; steps count in the order of their rows",
                        location=path,
                        sequence_id=episode_id(episode),
                        column=column if column in self.schema else "",
                        step=step,
                    )

    def _check_videos(self) -> Iterator[Finding]:
        store = open_store(self.root, storage=self.storage)
        for places in self.cameras.values():
            for path in dict.fromkeys(path for path in places.paths if path is not None):
                times = _shown(partial(self._film, store), path, self.schema[places.column].type)
                if times is not None:
                    yield from compared(places, path, times, self.files.episodes, self.info)


def _missing(path: str) -> Finding:
    text = "the list of episodes names this data file, but it is not here"
    return Finding(code="lerobot-missing-file", severity="error", message=text, location=path)


def _shown(film: Callable[[str], Blob], path: str, column: ColumnType | None) -> NDArray[np.float64] | None:
    """[frames] when each frame of a video is shown, in seconds; None where that is for others to say."""
    assert column is not None
    try:
        decoder = open_video(Source(blob=film(path), column=column))
    except (FileNotFoundError, SeqlakeError):
        return None  # validation says so of every file that a row names
    with closing(decoder):
        return np.asarray(decoder.pts * float(decoder.time_base), np.float64)


def counters(info: Info, episodes: Episodes, /) -> Iterator[Finding]:
    """Where the totals and splits of `info.json` are not those of the episodes."""
    counted = {"episodes": len(episodes), "frames": int(episodes.length.sum())}
    for name, count in counted.items():
        total = info.total(name)
        if total is not None and total != count:
            text = f"total_{name} is {total}, and {count} are listed"
            yield Finding(code="lerobot-count", severity="error", message=text, location=INFO)
    taken = np.zeros(len(episodes), np.int64)
    for name, numbers in info.splits().items():
        if numbers is None:
            text = f"the split {name!r} is {info.fields['splits'][name]!r:.80}, no range of episodes as '0:50'"
            yield Finding(code="lerobot-split", severity="warning", message=text, location=INFO)
        else:
            taken += (episodes.index >= numbers.start) & (episodes.index < numbers.stop)
    if (taken > 1).any():
        text = f"{int((taken > 1).sum())} episodes are in several splits; the first counts"
        yield Finding(code="lerobot-split", severity="warning", message=text, location=INFO)
