"""Writes stores that l5kit opens: pre-sized, so that many writers fill chunks of their own at the same time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.arguments import COUNT, INDEX, TEXT, Kind, takes, whole
from seqlake.errors import DatasetExistsError, SchemaMismatchError
from seqlake.files.local import remove_empty_folders
from seqlake.files.locations import absolute, is_local, local_path
from seqlake.files.stores import exists, list_without_links, open_store
from seqlake.formats._zarr.metadata import BLOSC, ArrayMetadata, encode
from seqlake.formats._zarr.places import ROOT
from seqlake.formats.l5kit.arrays import THREADS, joined
from seqlake.formats.l5kit.store import (
    AGENT_INTERVAL,
    AGENTS,
    ARRAY,
    ATTRIBUTES,
    CHUNKS,
    DTYPES,
    FACE_INTERVAL,
    FACES,
    FRAME_INTERVAL,
    FRAMES,
    MASKS,
    PERCEPTION_LABELS,
    SCENES,
    SceneData,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

_ARRAYS = Kind(
    "arrays by their names, as sized(scenes=1, frames=100) gives them",
    lambda value: all(isinstance(name, str) and isinstance(one, ArrayMetadata) for name, one in value.items()),
)
_ROWS = Kind("an array of rows", lambda value: isinstance(value, np.ndarray) and value.ndim > 0)
_PARTS = Kind("arrays of rows in a list", lambda value: not isinstance(value, (str, Mapping)) and bool(iter(value)))
_DATA = Kind(
    "arrays by their names, or scenes of a store",
    lambda value: (
        isinstance(value, SceneData)
        or all(isinstance(name, str) and isinstance(one, np.ndarray) for name, one in value.items())
    ),
)
_SCENES = Kind("scenes in memory, as store.get_scene_dataset(0) gives them", lambda value: isinstance(value, SceneData))
_COUNTED = (
    (SCENES, FRAMES, FRAME_INTERVAL),
    (FRAMES, AGENTS, AGENT_INTERVAL),
    (FRAMES, FACES, FACE_INTERVAL),
)
_ENDLESS = 1 << 40  # rows that an array has until it is known how many there are
_CODEC = Kind(
    "settings of a codec, as {'id': 'zlib', 'level': 1}, or None",
    lambda value: value is None or isinstance(value["id"], str),
)
GROUP = '{\n    "zarr_format": 2\n}'


def attributes_of(format_version: int = 2, labels: Sequence[str] = PERCEPTION_LABELS) -> str:
    """The text of `.zattrs`, as zarr 2 writes it."""
    value = {"format_version": format_version, "labels": list(labels)}
    return json.dumps(value, indent=4, sort_keys=True, ensure_ascii=True, separators=(",", ": "))


def metadata_of(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], /, *, chunks: int = 0, compressor: Any = BLOSC
) -> ArrayMetadata:
    """The `.zarray` of one of l5kit's arrays.

    Args:
        name: The array, for its usual number of rows a chunk.
        dtype: Of a row.
        shape: Rows first.
        chunks: Rows a chunk; 0: as l5kit writes them.
        compressor: The codec's settings; None stores plain bytes.
    """
    rows = chunks or CHUNKS.get(name, CHUNKS[FRAMES])
    fill = None if dtype.names is not None else 0
    return ArrayMetadata(dtype=dtype, shape=shape, chunks=(rows, *shape[1:]), compressor=compressor, fill=fill)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreWriter:
    """Fills a pre-sized store. It pickles: processes that fill disjoint ranges of chunks need not know of each other.

    Attributes:
        location: The store.
        arrays: The arrays it has.
        storage: Options of the object store; never printed.
        threads: How many chunks are encoded at a time.
    """

    location: str
    arrays: Mapping[str, ArrayMetadata]
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    threads: int = THREADS

    def ranges(self, name: str, parts: int, /) -> list[range]:
        """The rows of an array in at most `parts` ranges that share no chunk: one for each writer.

        Example:
            ```python
            writer.ranges("agents", 2)  # [range(0, 40000), range(40000, 60802)]
            ```
        """
        metadata = self._array(name)
        whole(1).check("parts", parts)
        cuts = np.linspace(0, metadata.count, max(1, min(parts, metadata.count)) + 1).astype(int) * metadata.chunks[0]
        rows = metadata.shape[0]
        return [range(int(a), min(int(b), rows)) for a, b in pairwise(cuts)] if rows else []

    def write(self, name: str, start: int, rows: NDArray[Any], /) -> None:
        """Put rows where they belong, whole chunks at a time.

        Args:
            name: The array.
            start: The first row, a multiple of the chunk's rows.
            rows: Of the array's dtype; they end at the end of a chunk or of the array.

        Raises:
            SchemaMismatchError: Rows of another dtype.
            ValueError: A range that shares a chunk with its neighbour, or leaves the array.
        """
        metadata = self._array(name)
        INDEX.check("start", start)
        _ROWS.check("rows", rows)
        size, stop = metadata.chunks[0], start + len(rows)
        if rows.dtype != metadata.dtype or rows.shape[1:] != metadata.shape[1:]:
            raise SchemaMismatchError(f"{name} has rows of {metadata.dtype}, found {rows.dtype} {rows.shape[1:]}.")
        if start < 0 or start % size or stop > metadata.shape[0] or (stop % size and stop != metadata.shape[0]):
            raise ValueError(
                f"{name}: rows {start} to {stop} are no whole chunks of {size} rows in {metadata.shape[0]}; "
                "`ranges` gives such as are."
            )
        store = open_store(self.location, storage=self.storage)

        def put(at: int) -> None:
            part = rows[at : at + size]
            zeros = ".".join([str((start + at) // size), *("0" for _ in metadata.shape[1:])])
            store.put(f"{name}/{zeros}", encode(metadata, part))

        firsts = range(0, len(rows), size)
        if len(firsts) < 2 or self.threads < 2:
            for first in firsts:
                put(first)
            return
        with ThreadPoolExecutor(min(self.threads, len(firsts))) as pool:
            list(pool.map(put, firsts))

    def appended(self, name: str, parts: Iterable[NDArray[Any]], /) -> int:
        """Write parts of any size one after the other, from the first row on; how many rows they were."""
        self._array(name)
        appender = Appender(self, name)
        _PARTS.check("parts", parts)
        for part in parts:
            _ROWS.check("parts", part)
            appender.add(part)
        return appender.close()

    def _array(self, name: str) -> ArrayMetadata:
        if not isinstance(name, str) or name not in self.arrays:
            raise ValueError(f"name: expected one of {', '.join(self.arrays)}, found {name!r}.")
        return self.arrays[name]


class GrowingStore:
    """A store whose sizes nobody knows yet: scenes are appended, and nobody sees it before it is whole.

    Rows wait in memory until they fill chunks. See `growing_store`.

    Args:
        writer: Of a store that is staged, with more rows than any has.
    """

    def __init__(self, writer: StoreWriter, /) -> None:
        self._writer = writer
        self._appenders = {name: Appender(writer, name) for name in writer.arrays}
        self._counts = dict.fromkeys(writer.arrays, 0)

    def append(self, data: SceneData, /) -> None:
        """Add scenes in memory, whose intervals count in their own arrays from 0.

        Raises:
            SchemaMismatchError: Rows of other fields, or intervals that leave their arrays.
            ValueError: No scenes.
        """
        _SCENES.check("data", data)
        arrays = named(data)
        shifted = {}
        for name, metadata in self._writer.arrays.items():
            if name not in arrays or arrays[name].dtype != metadata.dtype:
                given = arrays[name].dtype if name in arrays else "none"
                raise SchemaMismatchError(f"{name} has rows of {metadata.dtype}, found {given}.")
            shifted[name] = arrays[name].copy()
        for name, child, interval in _COUNTED:
            if child in shifted:
                pairs = shifted[name][interval]
                if len(pairs) and (pairs.min() < 0 or pairs.max() > len(shifted[child])):
                    raise SchemaMismatchError(
                        f"{interval} of {name} counts to {pairs.max()}, and there are {len(shifted[child])} {child}."
                    )
                pairs += self._counts[child]
        for name, rows in shifted.items():
            self._appenders[name].add(rows)
            self._counts[name] += len(rows)

    def finish(self) -> StoreWriter:
        """Write what is left and the sizes that the arrays have come to."""
        arrays = {
            name: replace(metadata, shape=(self._counts[name], *metadata.shape[1:]))
            for name, metadata in self._writer.arrays.items()
        }
        store = open_store(self._writer.location, storage=self._writer.storage)
        writer = replace(self._writer, arrays=arrays)
        for name, metadata in arrays.items():
            self._appenders[name].close(writer)
            store.put(f"{name}/{ARRAY}", metadata.to_json().encode())
        return writer


class Appender:
    """Writes rows one after the other, from the first on; what does not fill chunks yet waits in memory.

    Args:
        writer: Of the store.
        name: The array.
    """

    def __init__(self, writer: StoreWriter, name: str, /) -> None:
        self._writer = writer
        self._name = name
        self._chunk = writer.arrays[name].chunks[0]
        self._held: list[NDArray[Any]] = []
        self._count = 0
        self._written = 0

    def add(self, rows: NDArray[Any], /) -> None:
        """Take the next rows."""
        self._held.append(rows)
        self._count += len(rows)
        if self._count - self._written >= self._chunk * max(1, self._writer.threads):
            held = joined(self._held, self._writer.arrays[self._name])
            whole = len(held) - len(held) % self._chunk
            self._writer.write(self._name, self._written, held[:whole])
            self._held, self._written = [held[whole:]], self._written + whole

    def close(self, writer: StoreWriter | None = None, /) -> int:
        """Write what is left, by the writer that knows how many rows they were; how many they were in all."""
        if self._count > self._written:
            (writer or self._writer).write(
                self._name, self._written, joined(self._held, self._writer.arrays[self._name])
            )
            self._held, self._written = [], self._count
        return self._count


@takes(arrays=_ARRAYS, attributes=TEXT.or_none())
def create_store(
    location: str,
    arrays: Mapping[str, ArrayMetadata],
    /,
    *,
    attributes: str | None = None,
    storage: Mapping[str, str] | None = None,
) -> StoreWriter:
    """Make a store of fixed sizes without any rows, as `ChunkedDataset.initialize` does; rows not written are zero.

    Args:
        location: A folder or URI that holds nothing yet.
        arrays: The arrays by their names, as `metadata_of` and `sized` give them.
        attributes: The text of `.zattrs`; by default as l5kit writes it.
        storage: Options of the object store.

    Raises:
        DatasetExistsError: Something is there.

    Example:
        ```python
        writer = l5.create_store("new.zarr", l5.sized(scenes=2, frames=500, agents=9000))
        ```
    """
    version = 2 if FACES in arrays else 1
    text = attributes_of(version) if attributes is None else attributes
    with whole_store(location, arrays, attributes=text, storage=storage) as writer:
        return writer


@contextmanager
def whole_store(
    location: str,
    arrays: Mapping[str, ArrayMetadata],
    /,
    *,
    attributes: str,
    storage: Mapping[str, str] | None = None,
) -> Iterator[StoreWriter]:
    """A store to be filled: at the end of the block it is there, and after an error nothing of it is.

    Args:
        location: A folder or URI that holds nothing yet.
        arrays: The arrays by their names.
        attributes: The text of `.zattrs`.
        storage: Options of the object store.

    Raises:
        DatasetExistsError: Something is there.
    """
    place = refuse_taken(location, storage=storage)
    try:
        writer = staged_store(place, arrays, storage=storage)
        yield writer
        publish(writer, attributes)
    except BaseException:
        remove_store(place, storage=storage)
        raise


@contextmanager
def growing_store(
    location: str,
    /,
    *,
    chunks: int = 0,
    compressor: Any = BLOSC,
    attributes: str | None = None,
    storage: Mapping[str, str] | None = None,
) -> Iterator[GrowingStore]:
    """A store to which scenes are appended, however many there will be; at the end of the block it is there.

    After an error nothing of it is. To add to a store that is finished, write what is new beside it and join the two
    with `zarr_concat`.

    Args:
        location: A folder or URI that holds nothing yet.
        chunks: Rows a chunk; 0: as l5kit writes them.
        compressor: The codec's settings; None stores plain bytes.
        attributes: The text of `.zattrs`; by default as l5kit writes it.
        storage: Options of the object store.

    Raises:
        DatasetExistsError: Something is there.

    Example:
        ```python
        with growing_store("some.zarr") as out:
            for scene in range(0, len(store.scenes), 7):
                out.append(store.get_scene_dataset(scene))
        ```
    """
    COUNT.check("chunks", chunks)
    _CODEC.check("compressor", compressor)
    arrays = {
        name: metadata_of(name, dtype, (_ENDLESS,), chunks=chunks, compressor=compressor)
        for name, dtype in DTYPES.items()
    }
    place = refuse_taken(location, storage=storage)
    try:
        growing = GrowingStore(staged_store(place, arrays, storage=storage))
        yield growing
        publish(growing.finish(), attributes_of() if attributes is None else attributes)
    except BaseException:
        remove_store(place, storage=storage)
        raise


def remove_store(location: str, /, *, storage: Mapping[str, str] | None = None) -> None:
    """Remove what lies at a place that held nothing before."""
    store = open_store(location, storage=storage)
    store.delete([path for path, _ in list_without_links(store)])
    if is_local(location):
        remove_empty_folders(local_path(location))


def refuse_taken(location: str, /, *, storage: Mapping[str, str] | None = None) -> str:
    """The place, absolute; raises `DatasetExistsError` unless nothing is there."""
    place = absolute(location)
    taken = is_local(place) and (path := local_path(place)).exists() and not path.is_dir()
    if taken or any(True for _ in open_store(place, storage=storage).list()):
        raise DatasetExistsError(
            f"Expected a new or empty place, found something at {place}.", path=place, hint="Give another location."
        )
    return place


def staged_store(
    location: str,
    arrays: Mapping[str, ArrayMetadata],
    /,
    *,
    storage: Mapping[str, str] | None = None,
) -> StoreWriter:
    """One that no reader takes for a store before `publish`; other files may lie there."""
    place = absolute(location)
    store = open_store(place, storage=storage)
    if exists(store, ROOT):
        raise DatasetExistsError(
            f"Expected a new or empty place, found something at {place}.", path=place, hint="Give another location."
        )
    for name, metadata in arrays.items():
        store.put(f"{name}/{ARRAY}", metadata.to_json().encode())
    return StoreWriter(location=place, arrays=dict(arrays), storage=storage)


def publish(writer: StoreWriter, attributes: str, /) -> None:
    """Write what makes it a store, last: attributes, the group of masks, the root."""
    store = open_store(writer.location, storage=writer.storage)
    if any(name.startswith(f"{MASKS}/") for name in writer.arrays):
        store.put(f"{MASKS}/{ROOT}", GROUP.encode())
    store.put(ATTRIBUTES, attributes.encode())
    store.sync("", *writer.arrays)
    store.put(ROOT, GROUP.encode())
    store.sync("")


@takes(scenes=COUNT, frames=COUNT, agents=COUNT, tl_faces=COUNT, chunks=COUNT, compressor=_CODEC)
def sized(
    *,
    scenes: int = 0,
    frames: int = 0,
    agents: int = 0,
    tl_faces: int = 0,
    chunks: int = 0,
    compressor: Any = BLOSC,
) -> dict[str, ArrayMetadata]:
    """The four arrays of format 2 with so many rows each; see `metadata_of`.

    Example:
        ```python
        arrays = l5.sized(scenes=2, frames=500, agents=9000)
        ```
    """
    rows = {SCENES: scenes, FRAMES: frames, AGENTS: agents, FACES: tl_faces}
    return {
        name: metadata_of(name, DTYPES[name], (rows[name],), chunks=chunks, compressor=compressor) for name in DTYPES
    }


@takes(data=_DATA, attributes=TEXT.or_none(), chunks=COUNT, compressor=_CODEC)
def write_store(
    location: str,
    data: SceneData | Mapping[str, NDArray[Any]],
    /,
    *,
    attributes: str | None = None,
    chunks: int = 0,
    compressor: Any = BLOSC,
    storage: Mapping[str, str] | None = None,
) -> None:
    """Write arrays in memory as a store; nobody sees it before it is whole.

    Args:
        location: A folder or URI that holds nothing yet.
        data: Arrays by their names in the store, `agents_mask/...` too, or scenes in memory.
        attributes: The text of `.zattrs`; by default as l5kit writes it.
        chunks: Rows a chunk; 0: as l5kit writes them.
        compressor: The codec's settings; None stores plain bytes.
        storage: Options of the object store.

    Raises:
        DatasetExistsError: Something is there.

    Example:
        ```python
        write_store("first.zarr", open_store("sample.zarr").get_scene_dataset(0))
        ```
    """
    arrays = named(data) if isinstance(data, SceneData) else data
    metadata = {
        name: metadata_of(name, rows.dtype, rows.shape, chunks=chunks, compressor=compressor)
        for name, rows in arrays.items()
    }
    text = attributes_of(2 if FACES in arrays else 1) if attributes is None else attributes
    with whole_store(location, metadata, attributes=text, storage=storage) as writer:
        for name, rows in arrays.items():
            writer.appended(name, [rows])


def named(data: SceneData, /) -> dict[str, NDArray[Any]]:
    """Scenes in memory by the names of a store's arrays; no traffic lights where frames have none."""
    arrays = {SCENES: data.scenes, FRAMES: data.frames, AGENTS: data.agents, FACES: data.tl_faces}
    if "traffic_light_faces_index_interval" not in (data.frames.dtype.names or ()):
        del arrays[FACES]
    return arrays
