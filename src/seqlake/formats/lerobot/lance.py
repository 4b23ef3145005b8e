"""LeRobot's other storage, `storage_format: lance`: steps and videos are two Lance tables beside `meta/`.

`frames.lance` has one row a step in the order of `index`; dots in the names of features are underscores there.
`videos.lance` has one row a file, whose bytes are a blob: in the data file itself, in one that blobs share, or alone.
There they are read by range, as any file is.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake import plugins
from seqlake.abilities import Physical, ability
from seqlake.errors import CorruptFileError, InvalidMetadataError, MissingFileError, UnsupportedVersionError
from seqlake.files.blobs import PartBlob
from seqlake.files.locations import checked, join
from seqlake.files.stores import open_store
from seqlake.formats.lerobot.layout import fill

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.formats.lerobot.metadata import Info
    from seqlake.protocols import Blob, Ints, Shard

FRAMES, VIDEOS = "frames.lance", "videos.lance"
_BYTES = "video_bytes"
_INLINE, _SHARED, _ALONE = 0, 1, 2  # where the bytes of a blob lie, as Lance numbers it
_PLACE = ("video_key", "chunk_index", "file_index")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameRows:
    """Rows of `frames.lance`, as if they were a data file.

    Attributes:
        shards: Of the table.
        firsts: [shards + 1] number of the first row of each.
        columns: Feature -> its column.
        start, stop: Which rows of the table.
    """

    shards: Sequence[Shard]
    firsts: Ints
    columns: Mapping[str, str]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of them, about."""
        share = (self.stop - self.start) / max(int(self.firsts[-1]), 1)
        return int(share * sum(shard.nbytes for shard in self.shards))

    @property
    def keys(self) -> list[str]:
        """Of the shards that they are in: other bytes, other keys."""
        return [shard.key for shard, first, stop in self._parts() if first < stop]

    def part(self, start: int, stop: int, /) -> FrameRows:
        """Fewer rows of the table; those that it does not have are left out."""
        most = int(self.firsts[-1])
        return replace(self, start=min(start, most), stop=min(stop, most))

    def open(self) -> FrameRowsReader:
        """A reader for this process."""
        return FrameRowsReader(self)

    def _parts(self) -> Iterator[tuple[Shard, int, int]]:
        for number, shard in enumerate(self.shards):
            first, stop = int(self.firsts[number]), int(self.firsts[number + 1])
            yield shard, max(self.start, first) - first, min(self.stop, stop) - first


class FrameRowsReader:
    """Reads `FrameRows` as a data file is read."""

    def __init__(self, part: FrameRows, /) -> None:
        self._part = part
        self._names = {column: feature for feature, column in part.columns.items()}

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._part.stop - self._part.start

    @property
    def schema(self) -> pa.Schema:
        """The columns, called as their features are."""
        with closing(self._part.shards[0].open()) as reader:
            physical = ability(reader, Physical)
            stored = pa.schema([]) if physical is None else physical.schema
        return pa.schema([field.with_name(self._names.get(field.name, field.name)) for field in stored])

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of features, in the order of the rows asked for, which ascend."""
        wanted = np.arange(self.rows) if rows is None else np.asarray(rows, np.int64)
        numbers = wanted + self._part.start
        stored = [self._part.columns.get(name, name) for name in columns]
        of = np.searchsorted(self._part.firsts, numbers, side="right") - 1
        for shard in np.unique(of).tolist():
            with closing(self._part.shards[shard].open()) as reader:
                inside = numbers[of == shard] - self._part.firsts[shard]
                for batch in reader.batches(stored, rows=inside):
                    yield pa.RecordBatch.from_arrays(batch.columns, names=list(columns))

    def close(self) -> None:
        """Nothing is held open."""


def frame_rows(root: str, info: Info, /, *, storage: Mapping[str, str] | None) -> FrameRows:
    """All rows of `frames.lance`.

    Raises:
        DatasetNotFoundError: No such table.
        MissingDependencyError: `pylance` is not installed.
        InvalidMetadataError: Two features would have one column.
    """
    table = plugins.load("tables", "lance").open(f"lance:{join(root, FRAMES)}", storage=storage)
    shards = list(table.snapshot().shards())
    columns = {name: name.replace(".", "_") for name in info.features}
    if len(set(columns.values())) < len(columns):
        twice = next(name for name in columns if list(columns.values()).count(columns[name]) > 1)
        raise InvalidMetadataError(f"{root}: the feature {twice!r} and another one are one column of {FRAMES}.")
    firsts = np.cumsum([0, *[shard.rows for shard in shards]]).astype(np.int64)
    return FrameRows(shards=shards, firsts=firsts, columns=columns, start=0, stop=int(firsts[-1]))


def video_blobs(root: str, info: Info, /, *, storage: Mapping[str, str] | None) -> dict[str, Blob]:
    """Path of each video, as `info.json` names it -> its bytes in `videos.lance`.

    Raises:
        DatasetNotFoundError: No such table.
        CorruptFileError: It does not say where the bytes are.
        MissingFileError: They are not there.
        UnsupportedVersionError: They lie outside of the table.
    """
    from seqlake.tables.lance.engine import LanceEngine  # other folders of LeRobot load nothing of Lance

    place = join(root, VIDEOS)
    dataset = LanceEngine(place, storage=storage).dataset()
    if not dataset.count_rows():
        return {}
    scanner = partial(dataset.scanner, blob_handling="all_descriptions", with_row_address=True)
    try:
        rows = scanner(columns=[*_PLACE, "file_size", _BYTES]).to_table().to_pylist()
    except (ValueError, OSError, KeyError) as error:
        raise CorruptFileError(f"{place}: its videos cannot be listed: {error}."[:500], path=place) from None
    files = {fragment.fragment_id: _holding(fragment, dataset) for fragment in dataset.get_fragments()}
    store = open_store(place, storage=storage)
    blobs: dict[str, Blob] = {}
    whole: dict[str, Blob] = {}
    for row in rows:
        path = fill(info.video_path, {name: row[name] for name in _PLACE}, what="video_path in meta/info.json")
        file, start = _place(row[_BYTES], files.get(row["_rowaddr"] >> 32), place)
        size = int(row[_BYTES]["size"])
        try:
            whole[file] = whole[file] if file in whole else store.blob(file)
        except FileNotFoundError:
            raise MissingFileError(
                f"{place}: the video {path} lies in {file}, which is not there.", path=join(place, file)
            ) from None
        if size != row["file_size"] or start + size > whole[file].size:
            raise CorruptFileError(
                f"{place}: expected {row['file_size']} bytes of {path} from {start} on in {file}, found {size} of a "
                f"file of {whole[file].size}.",
                path=join(place, file),
            )
        blobs[path] = PartBlob(whole[file], start, start + size, join(root, path))
    return blobs


def _place(blob: Mapping[str, Any] | None, file: str | None, place: str) -> tuple[str, int]:
    """The file of a blob, below the table, and where in it the bytes begin."""
    if blob is None or file is None:
        raise CorruptFileError(f"{place}: a video has no bytes.", path=place)
    if blob["kind"] not in {_INLINE, _SHARED, _ALONE}:
        raise UnsupportedVersionError(
            f"{place}: a video lies outside of the table ({blob['blob_uri']!r:.200}), which is not read.", path=place
        )
    if blob["kind"] == _INLINE:
        return file, int(blob["position"])
    name = f"{int(blob['blob_id']):032b}"[::-1]  # the lowest bit first
    start = int(blob["position"]) if blob["kind"] == _SHARED else 0
    return f"{file.removesuffix('.lance')}/{name}.blob", start


def _holding(fragment: Any, dataset: Any) -> str | None:
    """The data file of a fragment that has the column of blobs."""
    number = dataset.lance_schema.field(_BYTES).id()
    for file in fragment.metadata.files:
        if number in file.fields:
            return checked(f"data/{file.path}")
    return None
