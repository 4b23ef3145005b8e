"""What lies in a replay buffer: its arrays by name, what is stored of each, and where episodes end."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DatasetNotFoundError, InvalidMetadataError, ReadOnlyError, SeqlakeError
from seqlake.files.locations import is_local
from seqlake.files.stores import read_all
from seqlake.formats._zarr.caching import ChunkCache
from seqlake.formats._zarr.grid import GridMetadata, parse_array
from seqlake.formats._zarr.places import NODE, Archive, open_place
from seqlake.formats._zarr.reading import GridArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.formats._zarr.places import StoreFiles
    from seqlake.protocols import Ints

ENDS = "meta/episode_ends"
NAMES = "meta/sequence_id"
DATA, META = "data/", "meta/"
_ARRAY = ".zarray"
_MOST_TEXT = 16 << 20  # bytes of what an array says of itself
_LONGEST = 1 << 40  # steps
_ROW_BYTES = 1 << 31


@dataclass(frozen=True, kw_only=True)
class ReplayPlace:
    """How the files of a replay buffer are reached; picklable.

    Attributes:
        location: A folder, URI or zip archive, absolute.
        storage: Options of the object store; never printed.
        most: Bytes that one chunk may make.
    """

    location: str
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    most: int

    def files(self) -> StoreFiles:
        """Open the folder or archive."""
        return open_place(self.location, storage=self.storage, most=self.most)

    def arrays(self, metadata: Mapping[str, GridMetadata], /) -> dict[str, GridArray]:
        """Readers of some arrays, which share a cache."""
        files, cache = self.files(), ChunkCache()
        return {name: GridArray(files, name, one, cache=cache, most=self.most) for name, one in metadata.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayLayout:
    """One look at a replay buffer.

    Attributes:
        place: How it is reached.
        arrays: Name -> metadata, as in `data/action`, of the arrays that can be read.
        unread: Name -> why an array cannot be read.
        stored: Name -> (files, bytes) that are stored of an array.
        ends_name: The array that says where episodes end.
        ends: [episodes] the step behind the last of each episode.
        state: Changes with any metadata or chunk.
    """

    place: ReplayPlace
    arrays: Mapping[str, GridMetadata]
    unread: Mapping[str, str]
    stored: Mapping[str, tuple[int, int]]
    ends_name: str
    ends: Ints
    state: str

    @property
    def starts(self) -> Ints:
        """[episodes] the first step of each."""
        return np.concatenate([[0], self.ends[:-1]]).astype(np.int64) if len(self.ends) else self.ends

    @property
    def lengths(self) -> Ints:
        """[episodes] how many steps each has."""
        return self.ends - self.starts


def is_replay(files: StoreFiles, /, *, ends: str = ENDS) -> bool:
    """Whether a store holds an array of that name."""
    return any(_exists(files, f"{ends}/{name}") for name in (_ARRAY, NODE))


def look(place: ReplayPlace, /, *, ends: str = ENDS) -> ReplayLayout:
    """Read the metadata of all arrays, list their chunks, and read where episodes end.

    Raises:
        DatasetNotFoundError: No array `ends` there.
        InvalidMetadataError: It cannot be read, or does not count up.
        CorruptFileError: It is damaged, or the archive is.
    """
    files = place.files()
    if not is_replay(files, ends=ends):
        raise DatasetNotFoundError(
            f"{place.location} holds no array {ends!r}, as a replay buffer does.",
            path=place.location,
            hint="Name the folder that holds data/ and meta/; ends=... says where episode ends are, if elsewhere.",
        )
    digest = hashlib.sha256()
    texts, stored = _listed(files, place, digest)
    arrays, unread = dict[str, GridMetadata](), dict[str, str]()
    for name, text in sorted(texts.items()):
        digest.update(name.encode() + b"\0" + text)
        try:
            arrays[name] = _array(text, name, place)
        except InvalidMetadataError as error:
            if name == ends:
                raise
            unread[name] = str(error)
    for name in [name for name in arrays if not arrays[name].shape]:
        del arrays[name]
        unread[name] = "a single value without rows"
    return ReplayLayout(
        place=place,
        arrays=arrays,
        unread=unread,
        stored=stored,
        ends_name=ends,
        ends=_ends(place, arrays, ends),
        state=digest.hexdigest(),
    )


def _array(text: bytes, name: str, place: ReplayPlace) -> GridMetadata:
    metadata = parse_array(text, location=f"{place.location}/{name}")
    if metadata.row_bytes > _ROW_BYTES:
        raise InvalidMetadataError(f"{place.location}/{name} has rows of {metadata.row_bytes} bytes.")
    return metadata


def _listed(files: StoreFiles, place: ReplayPlace, digest: Any) -> tuple[dict[str, bytes], dict[str, tuple[int, int]]]:
    """The texts of all arrays, and how much is stored of each."""
    try:
        names = list(files.list())
    except ReadOnlyError:  # the web lists nothing
        return _consolidated(files, place), {}
    texts = {
        name.rpartition("/")[0]: text
        for name, _ in names
        if name.endswith((f"/{_ARRAY}", f"/{NODE}"))
        and _is_array(text := read_all(files.blob(name), most=_MOST_TEXT), name)
    }
    local = is_local(place.location) and not isinstance(files, Archive)
    if isinstance(files, Archive):
        digest.update(files.token.encode())
    stored = dict.fromkeys(texts, (0, 0))
    for name, size in names:
        owner = _owner(name, texts)
        if owner is None or name in {f"{owner}/{_ARRAY}", f"{owner}/{NODE}", f"{owner}/.zattrs"}:
            continue
        count, nbytes = stored[owner]
        stored[owner] = count + 1, nbytes + size
        token = files.blob(name).token if local else ""
        digest.update(f"{name}\0{size}\0{token}\n".encode())
    return texts, stored


def _owner(name: str, arrays: Mapping[str, bytes]) -> str | None:
    """The array that a file belongs to."""
    while "/" in name:
        name = name.rpartition("/")[0]
        if name in arrays:
            return name
    return None


def _is_array(text: bytes, name: str) -> bool:
    if name.endswith(f"/{_ARRAY}"):
        return True
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return True  # and says so where it is read
    return not isinstance(value, dict) or value.get("node_type") != "group"


def _consolidated(files: StoreFiles, place: ReplayPlace) -> dict[str, bytes]:
    """The texts of all arrays out of the one file that some stores have them in."""
    for name, inside in ((".zmetadata", ("metadata",)), (NODE, ("consolidated_metadata", "metadata"))):
        if not _exists(files, name):
            continue
        try:
            value = json.loads(read_all(files.blob(name), most=_MOST_TEXT))
            for key in inside:
                value = value[key]
            arrays = {path.removesuffix(f"/{_ARRAY}"): one for path, one in value.items() if _says_array(path, one)}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidMetadataError(f"{place.location}/{name} cannot be used: {error!r}.") from error
        return {path: json.dumps(one).encode() for path, one in arrays.items()}
    raise InvalidMetadataError(
        f"{place.location}: names of arrays cannot be listed here, and no consolidated metadata name them.",
        hint="Consolidate the metadata (zarr.consolidate_metadata), or pack the store as a zip archive.",
    )


def _says_array(path: str, value: Mapping[str, Any]) -> bool:
    return path.endswith(f"/{_ARRAY}") or value.get("node_type") == "array"


def _exists(files: StoreFiles, path: str) -> bool:
    try:
        files.blob(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error, SeqlakeError):
            raise
        return False
    return True


def _ends(place: ReplayPlace, arrays: Mapping[str, GridMetadata], name: str) -> Ints:
    known = arrays.get(name)
    where = f"{place.location}/{name}"
    if known is None or len(known.shape) != 1 or known.dtype.kind not in "iu":
        text = "none" if known is None else f"{known.dtype} {list(known.shape)}"
        raise InvalidMetadataError(f"{where}: expected whole numbers, one an episode; found {text}.", path=where)
    array = place.arrays({name: known})[name]
    array.promises.refuse_empty()
    ends = array.rows(0, known.shape[0])
    if len(ends) and (int(ends.max()) > _LONGEST or int(ends.min()) < 0):
        raise InvalidMetadataError(f"{where}: {int(ends.max())} is no number of steps.", path=where)
    ends = ends.astype(np.int64)
    falling = np.flatnonzero(np.diff(ends) < 0)
    if len(falling):
        at = int(falling[0]) + 1
        raise InvalidMetadataError(
            f"{where}: expected ends that count up, found {ends[at]} behind {ends[at - 1]} at episode {at}.",
            path=where,
            hint="A recording was broken off or two buffers were mixed: mend episode_ends.",
        )
    return ends
