"""What lies below a table's root, read without any of the table's code."""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from seqlake.abilities import WholeFiles, ability

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Store

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


class Bytes:
    """All that lies below a root at this moment, read without any of the table's code.

    Args:
        store: The root.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: dict[str, list[str]] = {}
        self.sizes = dict(store.list(""))
        self.digests: list[str] = []
        self.records = [self._json(path) for path in sorted(p for p in self.sizes if _VERSION.fullmatch(p))]
        self.markers = sorted(match[1] for path in self.sizes if (match := _MARKER.fullmatch(path)))

    def read(self, path: str) -> bytes:
        """A file, whole."""
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
        """The oldest version that can be read."""
        return max((record.get("oldest", 0) for record in self.records), default=0)

    def live(self, version: int) -> dict[str, dict[str, Any]]:
        """Shard -> its entry and the transaction that added it, by a fold of this page's own."""
        found: dict[str, dict[str, Any]] = {}
        for record in self.records[: version + 1]:
            for name in record.get("remove", ()):
                demand(name in found, f"1: version {record['version']} removes {name}, which was not live")
                del found[name]
            for entry in record.get("add", ()):
                demand(entry["name"] not in found, f"1: version {record['version']} adds {entry['name']} again")
                found[entry["name"]] = {**entry, "transaction": record["transaction"]}
        return found

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
        found = []
        for name in self.live(version):
            place = self.place(name)
            demand(place is not None, f"3: version {version} needs {name}, which lies nowhere")
            found += self.ids(place or "")
        return found

    def in_data(self) -> set[str]:
        """The names in `data/`."""
        return {path.removeprefix("data/") for path in self.sizes if path.startswith("data/")}
