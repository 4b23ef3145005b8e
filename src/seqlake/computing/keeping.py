"""Results of a run in its work folder, until one commit shows them; those of rows that a rival left alone still count.

```text
<work>/result-00003.arrow     ids and values of task 3
<work>/file-<random>.mp4      a new file that a value of some task names
<work>/part-00003.json        the receipt: which rows, of which version, the digests of all these files
```
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.dataset.reading.difference import diff
from seqlake.dataset.reading.streaming import one_shard
from seqlake.dataset.selection import Selection
from seqlake.errors import DamagedTableError, VersionNotFoundError
from seqlake.spec.alignment import clock_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.computing.working import Answered, TaskRows
    from seqlake.dataset.dataset import Dataset
    from seqlake.protocols import Snapshot
    from seqlake.receipts import WorkFolder
    from seqlake.spec.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTask:
    """The results of one finished task.

    Attributes:
        number: The task's.
        base: What says of which rows they are: version and fingerprint of the dataset then.
        ids: Of all its rows.
        table: Ids and results, mapped, so that they need no memory.
        files: Names of new files.
        failures: (id, error) of those without a result.
    """

    number: int
    base: Mapping[str, Any]
    ids: Sequence[str]
    table: pa.Table
    files: Collection[str]
    failures: Sequence[tuple[str, str]]

    def of(self, owners: Mapping[str, int]) -> pa.Table:
        """The results of the rows that are this task's."""
        mine = [owners.get(key) == self.number for key in self.table.column(0).to_pylist()]
        return self.table if all(mine) else self.table.filter(pa.array(mine, pa.bool_()))


class Results:
    """What a run has kept.

    Args:
        folder: Its work folder.
    """

    def __init__(self, folder: WorkFolder, /) -> None:
        self._folder = folder

    def keep(self, task: TaskRows, answered: Answered, base: Mapping[str, Any], /) -> None:
        """Keep the results of a task: its files first, the receipt last."""
        for name, data in {_table(task.number): answered.table, **answered.files}.items():
            (self._folder.folder / name).write_bytes(data)
        self._folder.keep(
            task.number,
            {
                "base": dict(base),
                "ids": answered.ids,
                "sha256": _digest(answered.table),
                "files": {name: _digest(data) for name, data in answered.files.items()},
                "failures": answered.failures,
            },
        )

    def numbers(self) -> list[int]:
        """The tasks that have a receipt."""
        return sorted(self._folder.receipts())

    def all(self, *, proven: bool = True) -> Iterator[KeptTask]:
        """The results that lie here as they were written.

        Args:
            proven: Compare new files with their digests, too, which nobody needs who has just written them.
        """
        for number, receipt in self._folder.receipts().items():
            table = self._mapped(_table(number), receipt["sha256"])
            files = receipt["files"]
            if table is None or (proven and any(self._mapped(name, one) is None for name, one in files.items())):
                continue  # torn by a loss of power
            yield KeptTask(
                number=number,
                base=receipt["base"],
                ids=receipt["ids"],
                table=pa.ipc.open_stream(table).read_all(),
                files=files,
                failures=receipt["failures"],
            )

    def _mapped(self, name: str, digest: str) -> pa.Buffer | None:
        try:
            data = pa.memory_map(str(self._folder.folder / name)).read_buffer()
        except (FileNotFoundError, pa.ArrowInvalid):  # none, or empty
            return None
        return data if _digest(data) == digest else None

    def end(self, outcome: Mapping[str, Any], /) -> None:
        """The commit is made: a run that is killed from here on is over, whatever lies here still."""
        self._folder.keep_state(dict(outcome))

    def ended(self) -> Mapping[str, Any] | None:
        """What `end` kept of a run that was killed after it."""
        state: Mapping[str, Any] | None = self._folder.state()
        return state

    def clear(self) -> None:
        """Remove all of it, last what says that the run is over."""
        for pattern in ("result-*.arrow", "file-*", "part-*.json"):
            for place in self._folder.folder.glob(pattern):
                place.unlink(missing_ok=True)
        self._folder.clear()


def base_of(dataset: Dataset, /) -> dict[str, Any]:
    """What says which rows results are of."""
    return {"version": dataset.version.id, "fingerprint": dataset.source.fingerprint}


def owners_of(
    kept: Sequence[KeptTask], dataset: Dataset, inputs: Sequence[str], /, *, computed: Collection[str]
) -> dict[str, int]:
    """Id -> the task whose result of it counts.

    Results of an earlier version count for rows that have the same values in it, in all columns that were read.

    Args:
        kept: What lies in the work folder.
        dataset: As it is now.
        inputs: The columns that were read.
        computed: The id, and the columns that are computed.
    """
    now = base_of(dataset)
    owners: dict[str, int] = {}
    same: dict[str, Collection[str] | None] = {now["fingerprint"]: None}
    for one in kept:
        if one.base["fingerprint"] not in same:
            same[one.base["fingerprint"]] = _unchanged(dataset, one.base, inputs, computed)
        unchanged = same[one.base["fingerprint"]]
        owners |= {key: one.number for key in one.ids if unchanged is None or key in unchanged}
    return owners


def _unchanged(
    dataset: Dataset, base: Mapping[str, Any], inputs: Sequence[str], computed: Collection[str]
) -> Collection[str]:
    """Ids of the rows that are what they were in an earlier version; none where that version has expired."""
    try:
        before: Snapshot = dataset.table.snapshot(base["version"])
    except VersionNotFoundError:
        return ()
    names = [str(dataset.schema.id), *inputs]
    there = before.fingerprint == base["fingerprint"] and all(name in before.schema for name in names)
    if not there or _meaning(before.schema, names, computed) != _meaning(dataset.schema, names, computed):
        return ()  # of another dataset that was here then, or columns that mean something else by now
    old = Selection(before, storage=dataset.storage, allow_outside=dataset.allow_outside).select(*names)
    try:
        difference = diff(old, dataset.select(*names))
        ids: list[str] = old.select(names[0]).to_arrow().column(0).to_pylist()
    except (DamagedTableError, FileNotFoundError):  # its shards went before its name did: those that stay are the same
        return _in_both(before, dataset, names[0])
    return set(ids).difference(difference.removed, difference.changed)


def _in_both(before: Snapshot, dataset: Dataset, key: str) -> Collection[str]:
    """Ids of the rows of shards that both versions have."""
    keys = {shard.key for shard in before.shards()}
    shared = [shard for shard in dataset.shards() if shard.key in keys]
    return {name for shard in shared for batch in one_shard(shard, [key]) for name in batch.column(0).to_pylist()}


def _meaning(schema: Schema, names: Sequence[str], computed: Collection[str]) -> tuple[Any, ...]:
    """What columns say besides their cells: their types, and which step of one belongs to which of another."""
    clock = clock_of(schema.select([name for name in schema if name not in computed]))
    return schema.select(names).to_json(), clock.rate


def _table(number: int) -> str:
    return f"result-{number:05d}.arrow"


def _digest(data: bytes | pa.Buffer) -> str:
    return hashlib.sha256(data).hexdigest()
