"""The JSON files of a Delta log: one per version, created if absent, never changed; and its checkpoints.

Those are looked at before deltalake decodes them: some kilobytes of Parquet may stand for gigabytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from seqlake.errors import CorruptFileError, DamagedTableError
from seqlake.files.limits import DECODED
from seqlake.files.stores import read_all
from seqlake.protocols import Version
from seqlake.shards import parquet
from seqlake.shards.parquet.expansion import expansion_of
from seqlake.shards.parquet.footer import read_footer
from seqlake.versions import names
from seqlake.versions.small_files import can_list, names_in, read, read_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from seqlake.protocols import Blob, Store

LOG = "_delta_log"
OLDEST = f"{names.OURS}/oldest"
OPERATION = "mixtrain.operation"
TRANSACTION = "txnId"
MESSAGE = "userMetadata"  # as Spark and Databricks call it
_COMMIT = re.compile(r"\d{20}\.(json|checkpoint.*\.parquet)")
_CALLED = {
    "WRITE": "append", "CREATE TABLE": "create", "MERGE": "upsert", "RESTORE": "rollback", "ADD COLUMN": "evolve",
    "SET TBLPROPERTIES": "metadata", "CREATE TABLE AS SELECT": "create",
}  # fmt: skip


class DeltaLog:
    """The log of one table; what a file says is remembered, because it never changes.

    Args:
        store: The table's root.
    """

    def __init__(self, store: Store, /) -> None:
        self.store = store
        self._read: dict[int, list[dict[str, Any]]] = {}
        self._heads: dict[int, tuple[bytes, bytes]] = {}

    @property
    def root(self) -> str:
        """The table's location, for messages."""
        return self.store.root

    def numbers(self) -> list[int]:
        """The versions whose files are there, ascending."""
        stems = (name.removesuffix(".json") for name in names_in(self.store, LOG) if name.endswith(".json"))
        return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal() and stem.isascii())

    def actions(self, number: int, /) -> list[dict[str, Any]] | None:
        """What a version did; None where its file is not there (any more)."""
        return self.many([number])[0]

    def many(self, numbers: Sequence[int], /) -> list[list[dict[str, Any]] | None]:
        """What several versions did, read together."""
        unread = [number for number in numbers if number not in self._read]
        for number, data in zip(unread, read_many(self.store, [path(n) for n in unread]), strict=True):
            if data is not None:
                self._read[number] = self._parsed(data, number)
        return [self._read.get(number) for number in numbers]

    def digest(self, number: int, /) -> bytes:
        """Of the bytes of a version's file; empty where it is not there (any more)."""
        return self._head(number)[0]

    def create(self, number: int, lines: Iterable[Mapping[str, Any]], /, *, transaction: str) -> None:
        """Make a version, durably.

        Raises:
            FileExistsError: A rival made it.
        """
        data = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines).encode()
        self.store.put(path(number), data, if_absent=True, temporary=names.temporary(transaction))
        self.store.sync(LOG)

    def transaction_of(self, number: int, /) -> str | None:
        """Whose version it is: our transaction, "" for another client's, None where it is not there."""
        actions = self.actions(number)
        return None if actions is None else str(info(actions).get(TRANSACTION, ""))

    def version(self, number: int, /) -> Version:
        """A version as callers see it; its rows are not known here, and its files are not looked at."""
        if number in self._read:
            return described(number, self._read[number])
        return described(number, self._parsed(self._head(number)[1], number))

    def _head(self, number: int) -> tuple[bytes, bytes]:
        """A digest of a version's file, and the lines of it that say what the commit was."""
        if number not in self._heads:
            data = read(self.store, path(number))
            lines = (data or b"").splitlines()
            self._heads[number] = (
                b"" if data is None else hashlib.sha256(data).digest(),
                b"\n".join(one for one in lines if b'"commitInfo"' in one[:40]),
            )
        return self._heads[number]

    def oldest(self) -> int:
        """The oldest version that a vacuum left readable."""
        data = (read(self.store, OLDEST) or b"").strip()
        return int(data) if data.isdigit() else 0

    def _parsed(self, data: bytes, number: int) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in data.decode().split("\n") if line.strip()]
        except ValueError as error:
            raise DamagedTableError(
                f"{self.root}/{path(number)} is no Delta commit ({error}).",
                path=self.root,
                hint="Restore the file from a copy.",
            ) from error


def is_there(store: Store, /, *, since: int | None = None) -> bool:
    """Whether a Delta log lies below this root: a commit or a checkpoint, not any folder of that name.

    Args:
        store: The table's root.
        since: Only of this version and later ones.
    """
    listed = store.list(LOG, after="" if since is None else f"{LOG}/{since:020d}")
    return any(_COMMIT.fullmatch(name.rpartition("/")[2]) for name, _ in listed)


def path(number: int, /) -> str:
    """The path of a version's file."""
    return f"{LOG}/{number:020d}.json"


def info(actions: Sequence[Mapping[str, Any]], /) -> Mapping[str, Any]:
    """The commit's own words about itself; empty where it has none."""
    return next((one["commitInfo"] for one in actions if "commitInfo" in one), {})


def described(number: int, actions: Sequence[Mapping[str, Any]], /) -> Version:
    """A version from its actions, its rows left at 0."""
    commit = info(actions)
    operation = str(commit.get("operation", "unknown"))
    called = commit.get(OPERATION) or _CALLED.get(operation.upper()) or operation.lower()
    time = datetime.fromtimestamp(int(commit.get("timestamp", 0)) / 1000, UTC)
    said = commit.get(MESSAGE)
    return Version(id=number, time=time, operation=str(called), rows=0, message=None if said is None else str(said))


_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\..+)?\.parquet")
_SIDECARS = f"{LOG}/_sidecars/"


def hold_checkpoints(store: Store, /) -> None:
    """Refuse checkpoints that would take more memory than a file may.

    Those are looked at that a reader of the newest version takes: backwards from the newest one to the first that is
    whole, and the files beside checkpoints of version 2.

    Args:
        store: The table's root; over HTTP nothing can be listed, and nothing is looked at.

    Raises:
        CorruptFileError: One expands beyond `SEQLAKE_MAX_DECODED`, or is damaged.
    """
    if can_list(store):
        paths = [path for path, _ in store.list(LOG) if path.endswith(".parquet")]
        for path in _taken(paths):
            _hold(store.blob(path))


def checkpoint_adds(store: Store, /) -> Iterator[dict[str, Any]]:
    """The files that checkpoints have, newest checkpoint first, read a batch at a time.

    Raises:
        CorruptFileError: A checkpoint is damaged, or expands beyond the limit.
    """
    for path in sorted((path for path, _ in store.list(LOG) if _NAME.fullmatch(path.rpartition("/")[2])), reverse=True):
        for batch in parquet.open(store.blob(path)).batches(["add"]):
            yield from (one for one in batch.column(0).to_pylist() if one)


def _taken(paths: Sequence[str]) -> Iterator[str]:
    yield from (path for path in paths if path.startswith(_SIDECARS))
    by_version: dict[str, list[re.Match[str]]] = {}
    for path in paths:
        match = _NAME.fullmatch(path.removeprefix(f"{LOG}/"))
        if match is not None:
            by_version.setdefault(match[1], []).append(match)
    for version in sorted(by_version, reverse=True):
        files = by_version[version]
        yield from (f"{LOG}/{one[0]}" for one in files)
        parts = [one for one in files if one[3] is not None]
        if f"{version}.checkpoint.parquet" in {one[0] for one in files} or any(
            sum(one[3] == other[3] for other in parts) >= int(one[3]) for one in parts
        ):
            return


def _hold(blob: Blob) -> None:
    footer, view = read_footer(blob), blob.view()
    data = memoryview(read_all(blob)) if view is None else view
    parts = (expansion_of(footer, one, data[one.start : one.stop]) for group in footer.chunks for one in group)
    more = sum(part.more for part in parts)
    DECODED.hold(more, f"The checkpoint {blob.location}", path=blob.location, error=CorruptFileError)
