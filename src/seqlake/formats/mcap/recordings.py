"""Finds the recordings at a location: one file, a bag of ROS 2 (a folder), or a folder of these."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from seqlake.errors import CorruptFileError, DatasetNotFoundError, SeqlakeError, UnsafeReferenceError
from seqlake.files.appearing import refuse_unfinished
from seqlake.files.locations import absolute, is_local, join, local_path
from seqlake.files.stores import exists, open_store, read_all
from seqlake.formats.mcap import bag, sqlite, wire
from seqlake.formats.mcap.logs import LAST, LogMessage, MessageLog, Topic, unpacked_message
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.protocols import Blob, Store

METADATA = "metadata.yaml"
_ENDINGS = (".mcap", ".bag", ".db3")
_PACKED = tuple(f"{ending}.zstd" for ending in _ENDINGS)
_LOOKED_AT = 10_000  # names, before a folder is held to be something else
_OTHERS = ("mixtrain.json", "index.json", "meta/info.json", "features.json", "_delta_log", "dataset_info.json")
_MOST_METADATA = 16 << 20
_LISTED = re.compile(r"^\s*-\s+['\"]?([^\s'\"]+\.(?:mcap|db3)(?:\.zstd)?)['\"]?\s*$", re.MULTILINE)
_BY_MESSAGE = re.compile(r"^\s*compression_mode:\s*['\"]?message\b", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """One recording, in one file or in several, one after another; picklable.

    Attributes:
        id: Its path below the location, without its ending.
        path: Of its first file, or of its folder, below the root.
        logs: Its files.
        findings: What is wrong with its folder.
        packed: Whether each message is packed by itself.
    """

    id: str
    path: str
    logs: Sequence[MessageLog]
    findings: Sequence[Finding] = ()
    packed: bool = False

    @property
    def topics(self) -> dict[str, Topic]:
        """Topics by name, each as its first file has it."""
        return {topic.name: topic for log in reversed(self.logs) for topic in reversed(log.topics)}

    @property
    def span(self) -> tuple[int, int] | None:
        """Times of the first and the last message; None where there is none."""
        spans = [log.span for log in self.logs if log.span is not None]
        return (min(one[0] for one in spans), max(one[1] for one in spans)) if spans else None

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(log.blob.size for log in self.logs)

    def count(self, topic: str, /) -> int | None:
        """Messages of a topic; None where not every file says so."""
        if not all(topic in log.counts or topic not in {one.name for one in log.topics} for log in self.logs):
            return None
        return sum(log.counts.get(topic, 0) for log in self.logs)

    def messages(
        self, topics: Collection[str] | None = None, /, *, start: int = 0, stop: int = LAST + 1
    ) -> Iterator[LogMessage]:
        """Messages of some topics from `start` to before `stop`, file after file."""
        for log in self.logs:
            for message in log.messages(topics, start=start, stop=stop):
                yield message._replace(data=unpacked_message(message.data)) if self.packed else message


def looks_like_one(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a location is a recording or holds some, and is no dataset of another format."""
    try:
        root = absolute(location)
        if root.endswith(_ENDINGS):
            return not (is_local(root) and not local_path(root).is_file())
        if is_local(root) and not local_path(root).is_dir():
            return False
        return _holds_some(open_store(root, storage=storage), root)
    except UnsafeReferenceError:
        raise  # what it is can be said once that is allowed
    except (SeqlakeError, OSError, ValueError):
        return False


def _holds_some(store: Store, root: str) -> bool:
    if is_local(root):
        folder = local_path(root)
        if any((folder / name).exists() for name in _OTHERS):
            return False
        names = [
            str(path.relative_to(folder))
            for pattern in ("*", "*/*")
            for path in islice(folder.glob(pattern), _LOOKED_AT)
        ]
    else:
        names = [path for path, _ in islice(store.list(), _LOOKED_AT)]
    near = [name for name in names if name.replace("\\", "/").count("/") < 2]
    others = any(name in _OTHERS or name.endswith((".parquet", ".tfrecord")) for name in near)
    return not others and any(name.endswith((*_ENDINGS, *_PACKED)) for name in near)


def recordings_at(location: str, /, *, storage: Mapping[str, str] | None = None) -> tuple[str, list[LoggedRun]]:
    """The root, and all recordings below a location, in the order of their names.

    Raises:
        DatasetNotFoundError: There are none.
        CorruptFileError: One of them is no such file at all.
    """
    place = absolute(location)
    if place.endswith(_ENDINGS) and not (is_local(place) and local_path(place).is_dir()):
        root, _, name = place.rpartition("/")
        return root, [_one_file(open_store(root, storage=storage), name)]
    store = open_store(place, storage=storage)
    if is_local(place) and not local_path(place).is_dir():
        raise DatasetNotFoundError(f"No recording is at {place}.", path=place, hint="Check the path.")
    refuse_unfinished(store, place)
    groups = _grouped(store)
    if not groups:
        raise DatasetNotFoundError(
            f"{place} holds no recordings: files that end in {', '.join(_ENDINGS)} were expected.", path=place
        )
    name = place.rstrip("/").rpartition("/")[2]
    return place, [_opened(store, path, files, name) for path, files in groups]


def _grouped(store: Store) -> list[tuple[str, list[str]]]:
    """(path, files) of each recording: the files of a bag of ROS 2 belong together."""
    paths = sorted(
        path for path, _ in store.list() if path.endswith((*_ENDINGS, *_PACKED)) or path.rpartition("/")[2] == METADATA
    )
    bags = {path.rpartition("/")[0] for path in paths if path.rpartition("/")[2] == METADATA}
    groups: dict[str, list[str]] = {}
    for path in paths:
        folder = path.rpartition("/")[0]
        if path.rpartition("/")[2] == METADATA:
            continue
        groups.setdefault(folder if folder in bags and not path.endswith(".bag") else path, []).append(path)
    return sorted(groups.items())


def _one_file(store: Store, name: str) -> LoggedRun:
    return LoggedRun(id=name.rpartition(".")[0] or name, path=name, logs=(_log(_blob(store, name)),))


def _blob(store: Store, path: str) -> Blob:
    try:
        return store.blob(path)
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(f"No recording is at {join(store.root, path)}.", path=path) from None


def _log(blob: Blob) -> MessageLog:
    if blob.location.endswith(".bag"):
        return bag.read(blob)
    return sqlite.read(blob) if blob.location.endswith(".db3") else wire.read(blob)


def _opened(store: Store, path: str, files: list[str], name: str) -> LoggedRun:
    if path in files and not path.endswith(_PACKED):
        return _one_file(store, path)
    text = _metadata(store, path)
    findings, ordered = _ordered(text, path, files)
    if not ordered or path.endswith(_PACKED):
        raise CorruptFileError(
            f"{join(store.root, path or name)} is packed as a whole, so that none of it can be found.",
            path=store.root,
            hint="Unpack its files first: zstd -d.",
        )
    logs = tuple(_log(_blob(store, one)) for one in ordered)
    return LoggedRun(
        id=path or name, path=path or name, logs=logs, findings=findings, packed=_BY_MESSAGE.search(text) is not None
    )


def _metadata(store: Store, folder: str) -> str:
    """What `metadata.yaml` says; it is searched and never parsed, as it may be anybody's."""
    place = f"{folder}/{METADATA}" if folder else METADATA
    return read_all(store.blob(place), most=_MOST_METADATA).decode("utf-8", "replace") if exists(store, place) else ""


def _ordered(text: str, folder: str, files: list[str]) -> tuple[list[Finding], list[str]]:
    """The files of a bag of ROS 2 in the order of its `metadata.yaml`, then what it does not list."""
    place = f"{folder}/{METADATA}" if folder else METADATA
    findings, ordered = list[Finding](), list[str]()
    for name in dict.fromkeys(_LISTED.findall(text)):
        # Some versions write the bag's own folder before the name.
        path = "/".join(part for part in (folder, name.rpartition("/")[2]) if part)
        if path in files:
            ordered.append(path)
        else:
            findings.append(
                _finding("mcap-missing-file", "error", f"{METADATA} names {name!r}, which is not here", place)
            )
    rest = sorted((one for one in files if one not in ordered), key=_natural)
    findings += [
        _finding("mcap-missing-file", "warning", f"{METADATA} does not name {one!r}, which is read", place)
        for one in rest
    ]
    ordered += rest
    packed = [one for one in ordered if one.endswith(_PACKED)]
    findings += [
        _finding("mcap-packed", "error", f"{one!r} is packed as a whole: unpack it first (zstd -d)", place)
        for one in packed
    ]
    return findings, [one for one in ordered if one not in packed]


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", path)]


def _finding(code: str, severity: str, text: str, place: str) -> Finding:
    return Finding(code=code, severity="error" if severity == "error" else "warning", message=text, location=place)


def unique_ids(recordings: Sequence[LoggedRun], /) -> list[str]:
    """An id for each: its path without the ending; with it where two would be equal, and for all where that does."""
    ids = [one.id for one in recordings]
    longer = [one.path if ids.count(one.id) > 1 else one.id for one in recordings] if len(set(ids)) < len(ids) else ids
    return longer if len(set(longer)) == len(longer) else [one.path for one in recordings]
