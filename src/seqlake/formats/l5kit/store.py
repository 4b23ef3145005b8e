"""A store of l5kit, opened: its four arrays, its masks and its attributes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DatasetNotFoundError, InvalidMetadataError, SeqlakeError
from seqlake.files.locations import absolute
from seqlake.files.stores import exists, read_all
from seqlake.formats.l5kit.arrays import CACHE_BYTES, THREADS, Array, ChunkCache
from seqlake.formats.l5kit.metadata import ArrayMetadata
from seqlake.formats.l5kit.places import ROOT, Place, open_place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

SCENES, FRAMES, AGENTS, FACES, MASKS = "scenes", "frames", "agents", "traffic_light_faces", "agents_mask"
FRAME_INTERVAL, AGENT_INTERVAL, FACE_INTERVAL = (
    "frame_index_interval",
    "agent_index_interval",
    "traffic_light_faces_index_interval",
)
ATTRIBUTES, ARRAY = ".zattrs", ".zarray"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneData:
    """Arrays of one or more scenes in memory, with the attributes of a store.

    Attributes:
        scenes: [S] structured rows.
        frames: [F], `frame_index_interval` of a scene counts in them.
        agents: [A], `agent_index_interval` of a frame counts in them.
        tl_faces: [K]; empty where the store has none.
    """

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
    """

    def __init__(
        self,
        location: str,
        /,
        *,
        storage: Mapping[str, str] | None = None,
        cache_bytes: int = CACHE_BYTES,
        threads: int = THREADS,
    ) -> None:
        self.location = absolute(location)
        self.storage = storage
        self._cache = ChunkCache(cache_bytes)
        self._threads = threads

    @cached_property
    def place(self) -> Place:
        """The store's files."""
        return open_place(self.location, storage=self.storage)

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
        names = [path.split("/")[1] for path, _ in self.place.list(MASKS) if path.endswith(f"/{ARRAY}")]
        return {name: self.array(f"{MASKS}/{name}") for name in sorted(names)}

    @cached_property
    def attributes_text(self) -> str:
        """The text of `.zattrs`."""
        try:
            return read_all(self.place.blob(ATTRIBUTES)).decode()
        except FileNotFoundError:
            return "{}"

    @property
    def attributes(self) -> dict[str, Any]:
        """`format_version` and `labels`.

        Raises:
            InvalidMetadataError: Not JSON.
        """
        try:
            found = json.loads(self.attributes_text)
        except ValueError as error:
            raise InvalidMetadataError(f"{self.location}: {ATTRIBUTES} is not JSON: {error}.") from error
        return found if isinstance(found, dict) else {}

    @property
    def format_version(self) -> int:
        """1 has no traffic lights; 2 does."""
        return int(self.attributes.get("format_version", 1 if self.traffic_light_faces is None else 2))

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """All arrays by their names in the store, masks too."""
        found = {SCENES: self.scenes, FRAMES: self.frames, AGENTS: self.agents}
        if self.traffic_light_faces is not None:
            found[FACES] = self.traffic_light_faces
        return {**found, **{f"{MASKS}/{name}": mask for name, mask in self.masks.items()}}

    def array(self, name: str, /) -> Array:
        """One array by its folder.

        Raises:
            DatasetNotFoundError: There is none.
            InvalidMetadataError: Its `.zarray` cannot be used.
        """
        place = f"{self.location}/{name}/{ARRAY}"
        try:
            text = read_all(self.place.blob(f"{name}/{ARRAY}"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DatasetNotFoundError(
                f"{self.location} is no l5kit store: it has no {name}/{ARRAY}.", path=self.location
            ) from error
        metadata = ArrayMetadata.parse(text, location=place)
        return Array(self.place, name, metadata, cache=self._cache, threads=self._threads)

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
        kept = ("location", "storage", "_cache", "_threads")
        return {name: self.__dict__[name] for name in kept}

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(array)} {name}" for name, array in self.arrays.items())
        return f"Store({self.location!r}, {counts})"

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
) -> Store:
    """Open a store of l5kit, of format 1 or 2.

    Args:
        location: A folder or URI, or a zip archive of a folder.
        storage: Options of the object store, as obstore names them.
        cache_bytes: Bytes of decoded chunks that are kept.
        threads: How many chunks are decoded at a time.

    Raises:
        DatasetNotFoundError: No such store.
        InvalidMetadataError: A `.zarray` that cannot be used.

    Example:
        ```python
        store = open_store("sample.zarr")
        store.agents[:100]["centroid"], store.get_scene_dataset(0).frames
        ```
    """
    made = Store(location, storage=storage, cache_bytes=cache_bytes, threads=threads)
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
