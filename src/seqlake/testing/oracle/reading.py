"""What lies below a table's root, read without any of the table's code, and what each kind of reader sees there."""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import pyarrow.parquet as pq

from seqlake.abilities import WholeFiles, ability
from seqlake.dataset.reading import streaming
from seqlake.errors import VersionNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from seqlake.protocols import Blob, Store
    from seqlake.tables.standalone import StandaloneSnapshot

_VERSION = re.compile(r"_seqlake/versions/(\d{20})\.json")
_MARKER = re.compile(r"_seqlake/staged/([0-9a-f]{32})\.json")
_PLACES = ("data/{}.parquet", "_seqlake/staged/{}", "_seqlake/retired/{}")


class OracleError(AssertionError):
    """A promise of the protocol was broken; the message begins with its number."""


def demand(holds: object, promise: str, /) -> None:
    """Raise unless a promise holds."""
    if not holds:
        raise OracleError(promise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the test knows.

    Attributes:
        acknowledged: Version -> transaction, for every commit that returned.
        rows: Version -> the ids it must have; versions that are not named are only checked against the log.
        strangers: Paths that others put there.
        power_loss: `mixtrain.json` may then be an older one of ours.
        store: On an object store, where `data/` may hold retired names more until `vacuum`.
    """

    acknowledged: Mapping[int, str] = field(default_factory=dict)
    rows: Mapping[int, frozenset[str]] = field(default_factory=dict)
    strangers: frozenset[str] = frozenset()
    power_loss: bool = False
    store: bool = False


class Disk:
    """All that lies below a root at this moment, read without any of the table's code.

    Args:
        store: The root.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: dict[str, list[str]] = {}
        self.sizes: dict[str, int] = dict(store.list(""))
        self.digests: list[str] = []
        self.records: list[dict[str, Any]] = [
            self._json(path) for path in sorted(p for p in self.sizes if _VERSION.fullmatch(p))
        ]
        self.markers: list[str] = sorted(match[1] for path in self.sizes if (match := _MARKER.fullmatch(path)))

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        size = self.sizes[path]
        whole = ability(self._store, WholeFiles)
        if whole is not None:
            return bytes(whole.read(path))
        return bytes(self._store.blob(path).ranges(np.array([0]), np.array([size]))[0]) if size else b""

    def _json(self, path: str) -> dict[str, Any]:
        data = self.read(path)
        record: dict[str, Any] = json.loads(data)
        demand(isinstance(record, dict), f"1: {path} is no record")
        demand(record["version"] == int(path[-25:-5]), f"1: {path} says version {record['version']}")
        self.digests.append(record["digest"] if record["format"] > 1 else hashlib.sha256(data).hexdigest())
        if record["format"] > 1:
            head, _, tail = data.rpartition(b', "digest": "')
            demand(tail == f'{record["digest"]}"}}\n'.encode(), f"1: {path} does not end with its digest")
            demand(hashlib.sha256(head).hexdigest() == record["digest"], f"1: {path} has another digest")
            before = self.digests[-2] if len(self.digests) > 1 else None
            demand(record.get("previous") == before, f"1: {path} does not name the record before it")
        return record

    @property
    def newest(self) -> int:
        """The newest version; -1 for none."""
        return len(self.records) - 1

    @property
    def oldest(self) -> int:
        """The oldest version that can be read without a name."""
        return max((record.get("oldest", 0) for record in self.records), default=0)

    def tags(self, version: int | None = None) -> dict[str, int]:
        """The names of versions, as they were at a version; None: now."""
        tags: dict[str, int] = {}
        for record in self.records[: None if version is None else version + 1]:
            given = record.get("tags", {})
            demand(not given or "tags" in record.get("requires", ()), f"1: version {record['version']} hides its tags")
            tags = {name: number for name, number in {**tags, **given}.items() if number is not None}
        return tags

    @property
    def readable(self) -> list[int]:
        """The versions that can be read."""
        return sorted({*self.tags().values(), *range(self.oldest, self.newest + 1)})

    def live(self, version: int) -> dict[str, dict[str, Any]]:
        """Shard -> its entry and the transaction that added it, by a fold of this page's own."""
        entries: dict[str, dict[str, Any]] = {}
        for record in self.records[: version + 1]:
            for name in record.get("remove", ()):
                demand(name in entries, f"1: version {record['version']} removes {name}, which was not live")
                del entries[name]
            for entry in record.get("add", ()):
                demand(entry["name"] not in entries, f"1: version {record['version']} adds {entry['name']} again")
                entries[entry["name"]] = {**entry, "transaction": record["transaction"]}
        return entries

    def metadata(self, version: int) -> dict[str, Any]:
        """What `mixtrain.json` is at a version."""
        said = [r["mixtrain"] for r in self.records[: version + 1] if "mixtrain" in r]
        return said[-1] if said else {}

    def place(self, name: str) -> str | None:
        """Where a shard of this name lies."""
        bare = name.removesuffix(".parquet")
        return next((path for place in _PLACES if (path := place.format(bare)) in self.sizes), None)

    def ids(self, path: str) -> list[str]:
        """The ids in a Parquet file, by pyarrow."""
        if path not in self._ids:
            table = pq.read_table(io.BytesIO(self.read(path)), columns=["sequence_id"])
            self._ids[path] = table.column(0).to_pylist()
        return self._ids[path]

    def version_ids(self, version: int) -> list[str]:
        """The ids of a version."""
        ids = []
        for name in self.live(version):
            place = self.place(name)
            demand(place is not None, f"3: version {version} needs {name}, which lies nowhere")
            ids += self.ids(place or "")
        return ids

    def in_data(self) -> set[str]:
        """The names in `data/`."""
        return {path.removeprefix("data/") for path in self.sizes if path.startswith("data/")}


def read_ids(snapshot: StandaloneSnapshot, /) -> list[str]:
    """All ids of a snapshot, through the table: the manifest reader."""
    return [one for row in streaming.read(snapshot, ["sequence_id"]) for one in row.column(0).to_pylist()]


def glob_ids(store: Store, /) -> list[str]:
    """All ids of `data/*.parquet`, as a tool that knows nothing of us reads them: the glob reader.

    A file may retire between listing and opening: then it lists again.
    """
    while True:
        try:
            disk = Disk(store)
            return [
                one for name in sorted(disk.in_data()) if name.endswith(".parquet") for one in disk.ids(f"data/{name}")
            ]
        except (FileNotFoundError, OSError):
            continue


def check_pinned(snapshot: StandaloneSnapshot, ids: Iterable[str], /) -> None:
    """A snapshot that was opened earlier gives its rows, or its version expired: the pinned reader."""
    try:
        seen = sorted(read_ids(snapshot))
    except VersionNotFoundError:
        left = Disk(snapshot.context.store).readable
        demand(int(snapshot.version.id) not in left, f"3: pinned version {snapshot.version.id} is gone, of {left}")
        return
    demand(seen == sorted(ids), f"3: pinned version {snapshot.version.id} gives other rows than it had")


class ReadOnly:
    """A store that refuses to write: shows that reading writes nothing.

    Args:
        store: What is read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.root: str = store.root
        self.blob: Callable[[str], Blob] = store.blob
        self.list: Callable[..., Iterator[tuple[str, int]]] = store.list

    def _refuse(self, *args: object, **_: object) -> NoReturn:
        raise OracleError(f"6: reading writes: {args}")

    put: ClassVar[Callable[..., NoReturn]] = _refuse
    local: ClassVar[Callable[..., NoReturn]] = _refuse
    copy: ClassVar[Callable[..., NoReturn]] = _refuse
    sync: ClassVar[Callable[..., NoReturn]] = _refuse
    move: ClassVar[Callable[..., NoReturn]] = _refuse
    delete: ClassVar[Callable[..., NoReturn]] = _refuse
