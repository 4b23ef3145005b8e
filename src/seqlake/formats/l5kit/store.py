"""A store of l5kit, opened: its four arrays, its masks and its attributes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DatasetNotFoundError, InvalidMetadataError, SeqlakeError, UnsafeReferenceError
from seqlake.files.locations import absolute
from seqlake.files.memory import limit_of
from seqlake.files.stores import exists, read_all
from seqlake.formats._arguments import COUNT, INDEX, TEXT
from seqlake.formats.l5kit.arrays import THREADS, Array
from seqlake.formats.l5kit.chunk_cache import CACHE_BYTES, ChunkCache
from seqlake.formats.l5kit.metadata import ArrayMetadata
from seqlake.formats.l5kit.places import ROOT, Place, open_place
from seqlake.formats.l5kit.promises import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

SCENES, FRAMES, AGENTS, FACES, MASKS = "scenes", "frames", "agents", "traffic_light_faces", "agents_mask"
FRAME_INTERVAL, AGENT_INTERVAL, FACE_INTERVAL = (
    "frame_index_interval",
    "agent_index_interval",
    "traffic_light_faces_index_interval",
)
INTERVALS = {SCENES: (FRAME_INTERVAL,), FRAMES: (AGENT_INTERVAL, FACE_INTERVAL)}
ATTRIBUTES, ARRAY = ".zattrs", ".zarray"
_METADATA_BYTES = 16 << 20  # of one `.zarray` or `.zattrs`: l5kit's have a few thousand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneData:
    """Arrays of one or more scenes in memory, with the attributes of a store.

    Attributes:
        scenes: [S] structured rows.
        frames: [F], `frame_index_interval` of a scene counts in them.
        agents: [A], `agent_index_interval` of a frame counts in them.
        tl_faces: [K]; empty where the store has none.
    """

    location = ""  # it lies nowhere

    scenes: NDArray[Any]
    frames: NDArray[Any]
    agents: NDArray[Any]
    tl_faces: NDArray[Any]


class Store:
    """A store of l5kit, read only. Arrays are read when they are sliced.

    It pickles as a description; every process opens its own files.

    Args:
        location: A folder, a URI, or a zip archive of a folder.
        storage: Options of the object store.
        cache_bytes: Bytes of decoded chunks that are kept, the last used ones.
        threads: How many chunks are decoded at a time.
        chunk_bytes: See `open_store`.
    """

    def __init__(
        self,
        location: str,
        /,
        *,
        storage: Mapping[str, str] | None = None,
        cache_bytes: int = CACHE_BYTES,
        threads: int = THREADS,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.location = absolute(location)
        self.storage = storage
        self._cache = ChunkCache(cache_bytes)
        self._threads = threads
        self._most = limit_of("chunk_bytes", chunk_bytes)

    @cached_property
    def place(self) -> Place:
        """The store's files."""
        return open_place(self.location, storage=self.storage, most=self._most)

    @cached_property
    def scenes(self) -> Array:
        """[S] one row a scene."""
        return self.array(SCENES)

    @cached_property
    def frames(self) -> Array:
        """[F] one row a moment of the recording."""
        return self.array(FRAMES)

    @cached_property
    def agents(self) -> Array:
        """[A] one row for each agent that was seen in a frame."""
        return self.array(AGENTS)

    @cached_property
    def traffic_light_faces(self) -> Array | None:
        """[K] one row for each face of a traffic light in a frame; None in stores of format 1."""
        return self.array(FACES) if exists(self.place, f"{FACES}/{ARRAY}") else None  # type: ignore[arg-type]  # it asks for `blob` alone

    @property
    def tl_faces(self) -> Array | NDArray[Any]:
        """`traffic_light_faces` by the name that l5kit gives it; an empty array in stores of format 1."""
        found = self.traffic_light_faces
        return np.empty(0, FACE_DTYPE) if found is None else found

    @cached_property
    def masks(self) -> dict[str, Array]:
        """`agents_mask/*` by their names: [A, 2] past and future frames (format 1: [A] booleans)."""
        found = (path.split("/") for path, _ in self.place.list(MASKS))
        names = [parts[1] for parts in found if len(parts) == 3 and parts[2] == ARRAY]
        return {name: self.array(f"{MASKS}/{name}") for name in sorted(names)}

    @cached_property
    def attributes_text(self) -> str:
        """The text of `.zattrs`.

        Raises:
            InvalidMetadataError: Not UTF-8, or too large.
        """
        try:
            return self._metadata(ATTRIBUTES).decode()
        except FileNotFoundError:
            return "{}"
        except UnicodeDecodeError as error:
            raise InvalidMetadataError(f"{self.location}: {ATTRIBUTES} is not UTF-8.", path=self.location) from error

    def _metadata(self, path: str) -> bytes:
        blob = self.place.blob(path)
        if blob.size > _METADATA_BYTES:
            raise InvalidMetadataError(
                f"{self.location}: {path} has {blob.size} bytes, expected at most {_METADATA_BYTES}.",
                path=self.location,
            )
        return read_all(blob)

    @property
    def attributes(self) -> dict[str, Any]:
        """`format_version` and `labels`.

        Raises:
            InvalidMetadataError: Not JSON.
        """
        try:
            found = json.loads(self.attributes_text)
        except (ValueError, RecursionError) as error:
            raise InvalidMetadataError(f"{self.location}: {ATTRIBUTES} is not JSON: {error}.") from error
        return found if isinstance(found, dict) else {}

    @property
    def format_version(self) -> int:
        """1 has no traffic lights; 2 does.

        Raises:
            InvalidMetadataError: No number.
        """
        found = self.attributes.get("format_version", 1 if self.traffic_light_faces is None else 2)
        if isinstance(found, bool) or not isinstance(found, int):
            raise InvalidMetadataError(f"{self.location}: expected a number as 'format_version', found {found!r}.")
        return found

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """All arrays by their names in the store, masks too."""
        found = {SCENES: self.scenes, FRAMES: self.frames, AGENTS: self.agents}
        if self.traffic_light_faces is not None:
            found[FACES] = self.traffic_light_faces
        for name, intervals in INTERVALS.items():
            for interval in intervals:
                self._expect_pairs(found[name], interval)
        return {**found, **{f"{MASKS}/{name}": mask for name, mask in self.masks.items()}}

    def array(self, name: str, /) -> Array:
        """One array by its folder.

        Raises:
            DatasetNotFoundError: There is none.
            InvalidMetadataError: Its `.zarray` cannot be used.
        """
        TEXT.check("name", name)
        place = f"{self.location}/{name}/{ARRAY}"
        try:
            text = self._metadata(f"{name}/{ARRAY}")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DatasetNotFoundError(
                f"{self.location} is no l5kit store: it has no {name}/{ARRAY}.", path=self.location
            ) from error
        metadata = ArrayMetadata.parse(text, location=place)
        return Array(self.place, name, metadata, cache=self._cache, threads=self._threads, most=self._most)

    def _expect_pairs(self, array: Array, interval: str) -> None:
        kind = array.dtype[interval] if interval in (array.dtype.names or ()) else None
        if kind is not None and (kind.base.kind not in "iu" or kind.shape != (2,)):
            raise InvalidMetadataError(
                f"{self.location}: expected pairs of whole numbers as {interval!r} of {array.name}, found {kind}.",
                path=self.location,
            )

    def get_scene_dataset(self, scene_index: int, /) -> SceneData:
        """One scene in memory, with intervals that count from 0; an empty scene gives empty arrays.

        Args:
            scene_index: Its number, from 0.

        Raises:
            ValueError: There is no such scene.
        """
        from seqlake.formats.l5kit.slices import scene_of

        return scene_of(self, scene_index)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("location", "storage", "_cache", "_threads", "_most")
        return {name: self.__dict__[name] for name in kept}

    def __repr__(self) -> str:
        known: dict[str, Array] = self.__dict__.get("arrays", {})  # nothing is opened for it
        return f"Store({', '.join([repr(self.location), *(f'{len(array)} {name}' for name, array in known.items())])})"

    def __str__(self) -> str:
        from seqlake.formats.l5kit.slices import described

        return described(self)


def open_store(
    location: str,
    /,
    *,
    storage: Mapping[str, str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    threads: int = THREADS,
    chunk_bytes: int = CHUNK_BYTES,
) -> Store:
    """Open a store of l5kit, of format 1 or 2.

    Args:
        location: A folder or URI, or a zip archive of a folder.
        storage: Options of the object store, as obstore names them.
        cache_bytes: Bytes of decoded chunks that are kept.
        threads: How many chunks are decoded at a time.
        chunk_bytes: The limit for what a store of somebody else may unfold to: bytes that one compressed chunk, or one
            compressed member of an archive, makes, and all rows of an array of which less than a thousandth is stored.

    Raises:
        DatasetNotFoundError: No such store.
        InvalidMetadataError: A `.zarray` that cannot be used.

    Example:
        ```python
        store = open_store("sample.zarr")
        store.agents[:100]["centroid"], store.get_scene_dataset(0).frames
        ```
    """
    COUNT.check("cache_bytes", cache_bytes)
    INDEX.check("threads", threads)
    made = Store(location, storage=storage, cache_bytes=cache_bytes, threads=threads, chunk_bytes=chunk_bytes)
    if not exists(made.place, ROOT):  # type: ignore[arg-type]  # it asks for `blob` alone
        raise DatasetNotFoundError(
            f"{made.location} is no l5kit store: it has no {ROOT}.",
            path=made.location,
            hint="A store is a folder (or a zip archive of one) in zarr format 2.",
        )
    _ = made.arrays  # what cannot be used is told now
    return made


def is_store(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a folder, URI or zip archive holds the three arrays that every store has."""
    try:
        place = open_place(location, storage=storage)
        return all(exists(place, path) for path in (ROOT, *(f"{name}/{ARRAY}" for name in (SCENES, FRAMES, AGENTS))))  # type: ignore[arg-type]  # it asks for `blob` alone
    except UnsafeReferenceError:
        raise  # what it is can be said once that is allowed
    except (SeqlakeError, OSError, ValueError):
        return False


# What l5kit 1.5 writes; what is read has the dtypes that its store says.
SCENE_DTYPE = np.dtype([(FRAME_INTERVAL, "<i8", (2,)), ("host", "<U16"), ("start_time", "<i8"), ("end_time", "<i8")])
FRAME_DTYPE = np.dtype(
    [
        ("timestamp", "<i8"),
        (AGENT_INTERVAL, "<i8", (2,)),
        (FACE_INTERVAL, "<i8", (2,)),
        ("ego_translation", "<f8", (3,)),
        ("ego_rotation", "<f8", (3, 3)),
    ]
)
AGENT_DTYPE = np.dtype(
    [
        ("centroid", "<f8", (2,)),
        ("extent", "<f4", (3,)),
        ("yaw", "<f4"),
        ("velocity", "<f4", (2,)),
        ("track_id", "<u8"),
        ("label_probabilities", "<f4", (17,)),
    ]
)
FACE_DTYPE = np.dtype([("face_id", "<U16"), ("traffic_light_id", "<U16"), ("traffic_light_face_status", "<f4", (3,))])
DTYPES = {SCENES: SCENE_DTYPE, FRAMES: FRAME_DTYPE, AGENTS: AGENT_DTYPE, FACES: FACE_DTYPE}
CHUNKS = {SCENES: 10_000, FRAMES: 10_000, AGENTS: 20_000, FACES: 10_000}
