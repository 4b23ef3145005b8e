"""A store of l5kit, opened: its arrays, masks and attributes, its labels, and slices of scenes by the rules of l5kit.

Slices and filters take structured arrays in memory, as slicing a `Store` gives them.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from seqlake.arguments import COUNT, INDEX, NUMBER, TEXT, Kind, takes, with_fields
from seqlake.errors import (
    DatasetNotFoundError,
    InvalidMetadataError,
    ReadOnlyError,
    SeqlakeError,
    UnsafeReferenceError,
)
from seqlake.files.limits import limit_of
from seqlake.files.locations import absolute
from seqlake.files.stores import exists, read_all
from seqlake.formats._zarr.caching import CACHE_BYTES, ChunkCache
from seqlake.formats._zarr.metadata import ArrayMetadata
from seqlake.formats._zarr.places import CHUNK_BYTES, ROOT, StoreFiles, open_place
from seqlake.formats.l5kit.arrays import THREADS, Array, RowArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

R = TypeVar("R", bound=RowArray)
SCENES, FRAMES, AGENTS, FACES, MASKS = "scenes", "frames", "agents", "traffic_light_faces", "agents_mask"
FRAME_INTERVAL, AGENT_INTERVAL, FACE_INTERVAL = (
    "frame_index_interval",
    "agent_index_interval",
    "traffic_light_faces_index_interval",
)
INTERVALS: Mapping[str, tuple[str, ...]] = {SCENES: (FRAME_INTERVAL,), FRAMES: (AGENT_INTERVAL, FACE_INTERVAL)}
_NAMED = {AGENT_INTERVAL: AGENTS, FACE_INTERVAL: FACES}
ATTRIBUTES, ARRAY = ".zattrs", ".zarray"
_METADATA_BYTES = 16 << 20  # of one `.zarray` or `.zattrs`: l5kit's have a few thousand
_NAMES = (
    "NOT_SET UNKNOWN DONTCARE CAR VAN TRAM BUS TRUCK EMERGENCY_VEHICLE OTHER_VEHICLE BICYCLE MOTORCYCLE CYCLIST "
    "MOTORCYCLIST PEDESTRIAN ANIMAL"
)
PERCEPTION_LABELS = [*(f"PERCEPTION_LABEL_{name}" for name in _NAMES.split()), "AVRESEARCH_LABEL_DONTCARE"]
"""The 17 labels of an agent."""

PERCEPTION_LABEL_TO_INDEX = {label: index for index, label in enumerate(PERCEPTION_LABELS)}

KEPT = range(PERCEPTION_LABEL_TO_INDEX["PERCEPTION_LABEL_CAR"], PERCEPTION_LABEL_TO_INDEX["AVRESEARCH_LABEL_DONTCARE"])
"""Labels of things that move by themselves: from `CAR` to `ANIMAL`."""

TL_FACE_LABELS = ["ACTIVE", "INACTIVE", "UNKNOWN"]
"""The states of a traffic light's face."""

TL_FACE_LABEL_TO_INDEX = {label: index for index, label in enumerate(TL_FACE_LABELS)}
_SHARD_BYTES = 64 << 20
_SHOWN_FRAMES = 50
_USUAL_RATE = 10.0
_OFTEN = 100  # times that all rows of an array may be named, on average
_FEW = 1_000_000  # rows that may be named as often as one likes
_POINT = Kind("a point as [x, y]", lambda value: np.asarray(value, np.float64).shape == (2,))


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


class SceneArrays(ABC, Generic[R]):
    """Scenes, frames, agents and traffic lights by the names of l5kit: of a store, or of a dataset made from one.

    Args:
        location: Where they lie.
    """

    def __init__(self, location: str, /) -> None:
        self.location = location

    @abstractmethod
    def array(self, name: str, /) -> R:
        """One array by its folder in a store.

        Raises:
            DatasetNotFoundError: There is none.
        """

    @abstractmethod
    def mask_names(self) -> Sequence[str]:
        """The names of the masks."""

    @property
    @abstractmethod
    def has_faces(self) -> bool:
        """Whether there is an array of traffic lights."""

    @property
    @abstractmethod
    def attributes_text(self) -> str:
        """The text of `.zattrs`."""

    @property
    @abstractmethod
    def state(self) -> str:
        """A hash of what changes when any row may have."""

    @abstractmethod
    def heads(self, scenes: Sequence[int], /) -> list[tuple[str, int]]:
        """(id, number) of some scenes, as rows of them have them."""

    @cached_property
    def scenes(self) -> R:
        """[S] one row a scene."""
        return self.array(SCENES)

    @cached_property
    def frames(self) -> R:
        """[F] one row a moment of the recording."""
        return self.array(FRAMES)

    @cached_property
    def agents(self) -> R:
        """[A] one row for each agent that was seen in a frame."""
        return self.array(AGENTS)

    @cached_property
    def traffic_light_faces(self) -> R | None:
        """[K] one row for each face of a traffic light in a frame; None in stores of format 1."""
        return self.array(FACES) if self.has_faces else None

    @property
    def tl_faces(self) -> R | NDArray[Any]:
        """`traffic_light_faces` by the name that l5kit gives it; an empty array in stores of format 1."""
        faces = self.traffic_light_faces
        return np.empty(0, FACE_DTYPE) if faces is None else faces

    @cached_property
    def masks(self) -> dict[str, R]:
        """`agents_mask/*` by their names: [A, 2] past and future frames (format 1: [A] booleans)."""
        return {name: self.array(f"{MASKS}/{name}") for name in sorted(self.mask_names())}

    @property
    def attributes(self) -> dict[str, Any]:
        """`format_version` and `labels`.

        Raises:
            InvalidMetadataError: Not JSON.
        """
        try:
            document = json.loads(self.attributes_text)
        except (ValueError, RecursionError) as error:
            raise InvalidMetadataError(f"{self.location}: {ATTRIBUTES} is not JSON: {error}.") from error
        return document if isinstance(document, dict) else {}

    @property
    def format_version(self) -> int:
        """1 has no traffic lights; 2 does.

        Raises:
            InvalidMetadataError: No number.
        """
        version = self.attributes.get("format_version", 1 if self.traffic_light_faces is None else 2)
        if isinstance(version, bool) or not isinstance(version, int):
            raise InvalidMetadataError(f"{self.location}: expected a number as 'format_version', found {version!r}.")
        return version

    @cached_property
    def arrays(self) -> dict[str, R]:
        """All arrays by their names in the store, masks too."""
        arrays = {SCENES: self.scenes, FRAMES: self.frames, AGENTS: self.agents}
        if self.traffic_light_faces is not None:
            arrays[FACES] = self.traffic_light_faces
        for name, intervals in INTERVALS.items():
            for interval in intervals:
                self._expect_pairs(arrays[name], interval)
        return {**arrays, **{f"{MASKS}/{name}": mask for name, mask in self.masks.items()}}

    def _expect_pairs(self, array: R, interval: str) -> None:
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
        return scene_of(self, scene_index)

    def __repr__(self) -> str:
        known: dict[str, R] = self.__dict__.get("arrays", {})  # nothing is opened for it
        counts = [f"{len(array)} {name}" for name, array in known.items()]
        return f"{type(self).__name__}({', '.join([repr(self.location), *counts])})"

    def __str__(self) -> str:
        return described(self)


class Store(SceneArrays[Array]):
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
        super().__init__(absolute(location))
        self.storage = storage
        self._cache = ChunkCache(cache_bytes)
        self._threads = threads
        self._most = limit_of("chunk_bytes", chunk_bytes)

    @cached_property
    def place(self) -> StoreFiles:
        """The files of the store."""
        return open_place(self.location, storage=self.storage, most=self._most)

    @property
    def has_faces(self) -> bool:
        """Whether there is an array of traffic lights, as in stores of format 2."""
        return exists(self.place, f"{FACES}/{ARRAY}")  # type: ignore[arg-type]  # it asks for `blob` alone

    def mask_names(self) -> list[str]:
        """The names of the masks.

        Raises:
            ReadOnlyError: A web server, which does not say what a folder holds.
        """
        try:
            paths = [path.split("/") for path, _ in self.place.list(MASKS)]
        except ReadOnlyError as error:
            raise ReadOnlyError(
                f"{self.location}: a plain web server does not say which files a folder holds.",
                path=self.location,
                hint="Put a zip archive of the store there; of it, too, only what is asked for is fetched.",
            ) from error
        return [parts[1] for parts in paths if len(parts) == 3 and parts[2] == ARRAY]

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

    def __getstate__(self) -> dict[str, Any]:
        kept = ("location", "storage", "_cache", "_threads", "_most")
        return {name: self.__dict__[name] for name in kept}

    @property
    def state(self) -> str:
        """A hash of what changes when any row may have: metadata, and size and token of every chunk."""
        facts = [
            [name, array.metadata.to_json(), [blob and (blob.size, blob.token) for blob in array.blobs()]]
            for name, array in self.arrays.items()
        ]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def heads(self, scenes: Sequence[int], /) -> list[tuple[str, int]]:
        """(id, number) of some scenes: the store's name and their numbers."""
        stem = stem_of(self.location)
        return [(f"{stem}-{number:05d}", number) for number in scenes]


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
    store = Store(location, storage=storage, cache_bytes=cache_bytes, threads=threads, chunk_bytes=chunk_bytes)
    if not exists(store.place, ROOT):  # type: ignore[arg-type]  # it asks for `blob` alone
        raise DatasetNotFoundError(
            f"{store.location} is no l5kit store: it has no {ROOT}.",
            path=store.location,
            hint="A store is a folder (or a zip archive of one) in zarr format 2.",
        )
    _ = store.arrays  # what cannot be used is told now
    return store


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


def stem_of(location: str, /) -> str:
    """The store's name without `.zarr` and `.zip`."""
    name = location.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return name.removesuffix(".zip").removesuffix(".zarr") or "store"


def grouped(sizes: list[int], /, *, limit: int = _SHARD_BYTES) -> Iterator[tuple[int, int]]:
    """Neighbours of about `limit` bytes together: (first, after the last)."""
    start, held = 0, 0
    for at, size in enumerate(sizes):
        if at > start and held + size > limit:
            yield start, at
            start, held = at, 0
        held += size
    if start < len(sizes):
        yield start, len(sizes)


def expect_fields(dtype: np.dtype[Any], names: Sequence[str], /, *, array: str, path: str = "") -> None:
    """See that rows have the fields that somebody asks for by name.

    Raises:
        InvalidMetadataError: One is missing.
    """
    missing = [name for name in names if name not in (dtype.names or ())]
    if missing:
        raise InvalidMetadataError(
            f"{path or 'The store'}: {array} has no field {missing[0]!r}; it has {', '.join(dtype.names or ())}.",
            path=path or None,
        )


def in_range(intervals: NDArray[Any], size: int, /, *, what: str, array: str, path: str = "") -> Ints:
    """[n, 2] the intervals as whole numbers: the first row, and the one after the last.

    Args:
        intervals: [n, 2] of scenes or frames.
        size: Rows of the array that they name.
        what: Whose they are, for messages.
        array: The name of the array.
        path: The store.

    Raises:
        InvalidMetadataError: One ends before it begins, or leaves the array.
    """
    pairs = intervals.astype(np.int64)
    # Unsigned numbers above 2^63 come out negative, which is refused as well.
    wrong = np.flatnonzero((pairs[:, 0] < 0) | (pairs[:, 1] < pairs[:, 0]) | (pairs[:, 1] > size))
    if len(wrong):
        row = int(wrong[0])
        first, last = pairs[row].tolist()
        raise InvalidMetadataError(
            f"{path or 'The store'}: {what} {row} names the rows {first} to {last} of {array}, which has {size}.",
            path=path or None,
            hint="The store is cut off, or its arrays are of different stores.",
        )
    return pairs


def span_of(frames: NDArray[Any], interval: str, size: int, /, *, path: str = "") -> slice:
    """Rows from the first that the first frame names to the last of the last one, as l5kit takes those of a scene.

    Args:
        frames: Of one scene; without that interval they name nothing.
        interval: Whose rows.
        size: Rows of the array that it counts in.
        path: The store.

    Raises:
        InvalidMetadataError: A frame names rows that there are not, or rows outside of that.
    """
    if not len(frames) or interval not in (frames.dtype.names or ()):
        return slice(0, 0)
    array = _NAMED[interval]
    pairs = in_range(frames[interval], size, what="of a scene, frame", array=array, path=path)
    rows = slice(int(pairs[0, 0]), int(pairs[-1, 1]))
    named = pairs[pairs[:, 1] > pairs[:, 0]]
    if len(named) and (int(named[:, 0].min()) < rows.start or int(named[:, 1].max()) > rows.stop):
        raise InvalidMetadataError(
            f"{path or 'The store'}: the frames of a scene name rows of {array} outside of {rows.start} to "
            f"{rows.stop}, where its first frame begins and its last one ends.",
            path=path or None,
            hint="sl.scan reads such stores as they are.",
        )
    return rows


def refuse_overlap(named: int, size: int, /, *, array: str, path: str) -> None:
    """See that intervals do not name the same rows again and again, before memory is taken for them.

    Raises:
        InvalidMetadataError: They do.
    """
    if named > _FEW + _OFTEN * size:
        raise InvalidMetadataError(
            f"{path}: the intervals of all scenes together name {named} rows of {array}, which has {size}.", path=path
        )


def get_frames_slice_from_scenes(scene_a: Any, scene_b: Any = None, /) -> slice:
    """Frames from the first of scene `a` to the last of scene `b` (of `a` itself by default)."""
    return _span(scene_a, scene_b, FRAME_INTERVAL)


def get_agents_slice_from_frames(frame_a: Any, frame_b: Any = None, /) -> slice:
    """Agents from the first of frame `a` to the last of frame `b` (of `a` itself by default)."""
    return _span(frame_a, frame_b, AGENT_INTERVAL)


def get_tl_faces_slice_from_frames(frame_a: Any, frame_b: Any = None, /) -> slice:
    """Traffic-light faces from the first of frame `a` to the last of frame `b` (of `a` itself by default)."""
    return _span(frame_a, frame_b, FACE_INTERVAL)


def _span(first: Any, last: Any, interval: str) -> slice:
    try:
        return slice(int(first[interval][0]), int((first if last is None else last)[interval][1]))
    except (TypeError, ValueError, LookupError):
        raise ValueError(f"Expected one row with {interval!r}, as store.frames[0], found {first!r:.80}.") from None


@takes(frames=with_fields(AGENT_INTERVAL), agents=with_fields())
def filter_agents_by_frames(frames: NDArray[Any], agents: NDArray[Any], /) -> list[NDArray[Any]]:
    """The agents of each frame; intervals must count in `agents`, so re-base them after slicing."""
    return [agents[get_agents_slice_from_frames(frame)] for frame in np.atleast_1d(frames)]


@takes(frames=with_fields(FACE_INTERVAL), tl_faces=with_fields())
def filter_tl_faces_by_frames(frames: NDArray[Any], tl_faces: NDArray[Any], /) -> list[NDArray[Any]]:
    """The traffic-light faces of each frame; intervals must count in `tl_faces`."""
    return [tl_faces[get_tl_faces_slice_from_frames(frame)] for frame in np.atleast_1d(frames)]


def label_mask(label_probabilities: NDArray[Any], threshold: float, /) -> NDArray[np.bool_]:
    """[n] whether the labels from `CAR` to `ANIMAL` are together more likely than `threshold`."""
    mask: NDArray[np.bool_] = np.sum(label_probabilities[:, list(KEPT)], axis=1) > threshold
    return mask


@takes(agents=with_fields("label_probabilities"), threshold=NUMBER)
def filter_agents_by_labels(agents: NDArray[Any], threshold: float = 0.5) -> NDArray[Any]:
    """Agents that are more likely than `threshold` something that moves by itself.

    Example:
        ```python
        cars = filter_agents_by_labels(store.agents[:20_000], threshold=0.5)
        ```
    """
    kept: NDArray[Any] = agents[label_mask(agents["label_probabilities"], threshold)]
    return kept


@takes(agents=with_fields("track_id"), track_id=INDEX)
def filter_agents_by_track_id(agents: NDArray[Any], track_id: int) -> NDArray[Any]:
    """Agents of one track; track ids are unique within a scene only."""
    kept: NDArray[Any] = agents[agents["track_id"] == track_id]
    return kept


@takes(agents=with_fields("centroid"), centroid=_POINT, max_distance=NUMBER)
def filter_agents_by_distance(agents: NDArray[Any], centroid: Any, max_distance: float) -> NDArray[Any]:
    """Agents nearer than `max_distance` metres to a point [2], the nearest first."""
    distance = np.linalg.norm(agents["centroid"] - centroid, axis=-1)
    near = distance < max_distance
    kept: NDArray[Any] = agents[near][np.argsort(distance[near])]
    return kept


@takes(tl_faces=with_fields("traffic_light_face_status"))
def filter_tl_faces_by_status(tl_faces: NDArray[Any], status: str) -> NDArray[Any]:
    """Faces whose `status`, as in `"ACTIVE"`, is above 0."""
    if not isinstance(status, str) or status not in TL_FACE_LABEL_TO_INDEX:
        raise ValueError(f"A face is {', '.join(TL_FACE_LABEL_TO_INDEX)}; found {status!r}.")
    return tl_faces[tl_faces["traffic_light_face_status"][:, TL_FACE_LABEL_TO_INDEX[status]] > 0]


@takes(scene_index=INDEX)
def scene_of(store: SceneArrays[Any] | SceneData, scene_index: int, /) -> SceneData:
    """One scene in memory, all intervals counted from 0; see `Store.get_scene_dataset`."""
    count = len(store.scenes)
    if not 0 <= scene_index < count:
        raise ValueError(f"There are {count} scenes; no scene {scene_index}.")
    scenes = _own(store.scenes, slice(scene_index, scene_index + 1))
    frame_rows = frames_of(store, scenes[0], scene_index)
    frames = _own(store.frames, frame_rows)
    spans = spans_of(store, frames)
    agents, faces = _own(store.agents, spans[AGENT_INTERVAL]), _own(store.tl_faces, spans[FACE_INTERVAL])
    for name, rows in spans.items():
        if name in (frames.dtype.names or ()):
            frames[name] -= rows.start
    scenes[FRAME_INTERVAL] -= frame_rows.start
    return SceneData(scenes=scenes, frames=frames, agents=agents, tl_faces=faces)


def _own(rows: Any, span: slice) -> NDArray[Any]:
    """Rows in memory of their own: slices of a store are, those of an array are not."""
    copied: NDArray[Any] = rows[span]
    return copied.copy() if isinstance(rows, np.ndarray) else copied


def frames_of(store: SceneArrays[Any] | SceneData, scene: Any, number: int, /) -> slice:
    """The frames of a scene.

    Raises:
        InvalidMetadataError: It names others than there are.
    """
    path = store.location
    expect_fields(scene.dtype, [FRAME_INTERVAL], array=SCENES, path=path)
    pair = np.asarray(scene[FRAME_INTERVAL])[None]
    in_range(pair, len(store.frames), what=f"of scene {number}, interval", array=FRAMES, path=path)
    return get_frames_slice_from_scenes(scene)


def spans_of(store: SceneArrays[Any] | SceneData, frames: NDArray[Any], /) -> dict[str, slice]:
    """The agents and the faces that the frames of one scene name, by the names of the intervals.

    Raises:
        InvalidMetadataError: They name others than there are, or than those from the first frame's to the last one's.
    """
    arrays = {AGENT_INTERVAL: store.agents, FACE_INTERVAL: store.tl_faces}
    return {name: span_of(frames, name, len(rows), path=store.location) for name, rows in arrays.items()}


@takes(scenes=with_fields(FRAME_INTERVAL, "host", "start_time", "end_time"))
def get_combined_scenes(scenes: NDArray[Any], /) -> NDArray[Any]:
    """Scenes that follow each other without a gap, on one host, made one: [n] rows of the same dtype."""
    if not len(scenes):
        return scenes
    follows = (scenes["start_time"][1:] == scenes["end_time"][:-1]) & _same_host(scenes)
    firsts = np.concatenate([[0], np.flatnonzero(~follows) + 1])
    lasts = np.concatenate([firsts[1:] - 1, [len(scenes) - 1]])
    combined: NDArray[Any] = scenes[firsts].copy()
    combined["end_time"] = scenes["end_time"][lasts]
    combined[FRAME_INTERVAL][:, 1] = scenes[FRAME_INTERVAL][lasts, 1]
    return combined


def _same_host(scenes: NDArray[Any]) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = scenes["host"][1:] == scenes["host"][:-1]
    return same


def described(store: SceneArrays[Any] | SceneData, /) -> str:
    """Counts, hours and rates of a store, in lines for people."""
    frames = len(store.frames)
    rate = _USUAL_RATE
    if frames > 1 and "timestamp" in (store.frames.dtype.names or ()):
        times = np.diff(store.frames[:_SHOWN_FRAMES]["timestamp"])
        with np.errstate(divide="ignore"):
            rate = float(np.mean(1e9 / times))
    scenes, agents = len(store.scenes), len(store.agents)
    lines = {
        "scenes": f"{scenes:,}",
        "frames": f"{frames:,}",
        "agents": f"{agents:,}",
        "traffic-light faces": f"{len(store.tl_faces):,}",
        "hours": f"{frames / max(rate, 1) / 3600:.2f}",
        "frames per scene": f"{frames / max(scenes, 1):.2f}",
        "agents per frame": f"{agents / max(frames, 1):.2f}",
        "seconds per scene": f"{frames / max(scenes, 1) / rate:.2f}",
        "frames per second": f"{rate:.2f}" + ("" if frames > 1 else " (assumed: too few frames to tell)"),
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())
