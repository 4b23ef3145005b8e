"""The contract of a lake beyond that of any table: many writers at once, killed writers, files out of reach.

```python
class TestDelta(LakeTests):
    @pytest.fixture
    def table(self, tmp_path):
        return delta.create(str(tmp_path / "t"), tables.SCHEMA)
```
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seqlake.dataset.dataset import Dataset
from seqlake.dataset.writing.ingest import File
from seqlake.testing import tables
from seqlake.testing.oracle import crashes
from seqlake.testing.processes import fresh

if TYPE_CHECKING:
    from collections.abc import Callable

WRITERS, APPENDS = 4, 6
_STEPS = 10  # so many steps of a commit are tried as the last one; a commit has at least 6


def dataset_of(table: Any, /) -> Dataset:
    """The table opened as a user would."""
    return Dataset(table, table.snapshot(), location=table.root)


class LakeTests:
    """The laws of a lake table; a plug's tests inherit them and give `table`, empty and made with `tables.SCHEMA`."""

    @pytest.fixture
    def table(self) -> Any:
        raise NotImplementedError

    def test_four_processes_append_and_every_row_is_there_once(self, table: Any) -> None:
        before = len(table.versions())
        with fresh().Pool(WRITERS) as pool:
            pool.starmap(_append_many, [(pickle.dumps(table), writer) for writer in range(WRITERS)], chunksize=1)
        ids = [f"w{writer}-{number}" for writer in range(WRITERS) for number in range(APPENDS)]
        assert tables.rows_of(table.snapshot()) == tables.expected(ids)
        assert len(table.versions()) == before + WRITERS * APPENDS

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a writer for each append")
    def test_half_of_the_writers_killed_lose_nothing_that_was_acknowledged(self, table: Any, tmp_path: Path) -> None:
        log = tmp_path / "acknowledged"
        log.mkdir()
        with fresh().Pool(WRITERS) as pool:
            killed = pool.starmap(
                _append_or_die, [(pickle.dumps(table), writer, str(log)) for writer in range(WRITERS)], chunksize=1
            )
        assert sum(killed) >= WRITERS * APPENDS // 4, "hardly a writer was killed"
        acknowledged = {path.name for path in log.iterdir()}
        rows = tables.rows_of(table.snapshot())
        assert acknowledged <= {one.partition(".")[0] for one in rows}
        for one in {name.partition(".")[0] for name in rows}:  # each append is two rows: both, or none
            assert rows[f"{one}.a"] == tables.episode(f"{one}.a")
            assert rows[f"{one}.b"] == tables.episode(f"{one}.b")
        failed = Path(f"{log}.failed")
        why = failed.read_text(encoding="utf-8") if failed.exists() else ""
        assert len(acknowledged) >= WRITERS * APPENDS // 2, why
        tables.append(table, ["afterwards"])
        table.vacuum(older_than=timedelta(0))
        assert set(tables.rows_of(table.snapshot())) == {*rows, "afterwards"}

    def test_an_update_of_scalars_rewrites_the_shard_and_keeps_the_signals(self, table: Any) -> None:
        tables.append(table, ["ep_1", "ep_2"])
        dataset = dataset_of(table)
        dataset.update([{"sequence_id": "ep_1", "label": "changed"}])
        wanted = tables.expected(["ep_1", "ep_2"])
        wanted["ep_1"]["label"] = "changed"
        assert tables.rows_of(table.snapshot()) == wanted

    def test_an_upsert_changes_and_adds(self, table: Any) -> None:
        tables.append(table, ["ep_1", "ep_2"])
        dataset_of(table).upsert([{"sequence_id": "ep_2", "label": "changed"}, tables.episode("ep_3")])
        wanted = tables.expected(["ep_1", "ep_2", "ep_3"])
        wanted["ep_2"]["label"] = "changed"
        assert tables.rows_of(table.snapshot()) == wanted

    def test_rows_deleted_by_a_condition_are_gone(self, table: Any) -> None:
        ids = [f"ep_{number}" for number in range(8)]
        tables.append(table, ids)
        dataset_of(table).delete("label = 'label of ep_3' OR label = 'label of ep_5'")
        assert tables.rows_of(table.snapshot()) == tables.expected(set(ids) - {"ep_3", "ep_5"})

    def test_copied_in_files_go_with_the_last_version_that_names_them(self, table: Any, tmp_path: Path) -> None:
        file = tmp_path / "notes.bin"
        file.write_bytes(b"seen")
        dataset = dataset_of(table)
        with dataset.writer() as writer:
            writer.add("ep_1", label=File(str(file)))
        (row,) = tables.rows_of(table.snapshot()).values()
        assert table.store.blob(row["label"]).size == 4
        table.vacuum(older_than=timedelta(0))
        assert table.store.blob(row["label"]).size == 4
        dataset.refresh()
        dataset.delete(ids=["ep_1"])
        table.vacuum(older_than=timedelta(0))
        with pytest.raises(FileNotFoundError):
            table.store.blob(row["label"])


def _append_many(pickled: bytes, writer: int) -> None:
    table = pickle.loads(pickled)
    for number in range(APPENDS):
        tables.append(table, [f"w{writer}-{number}"])


def _append_or_die(pickled: bytes, writer: int, log: str) -> int:
    """Append in children of a process that has used no library with threads; gives how many were killed."""
    tables.batch([tables.episode("a")], tables.SCHEMA)  # pyarrow looks for pandas, once
    for library in ("deltalake", "pyiceberg.catalog.sql", "duckdb"):  # once, and not in every child
        with suppress(ImportError):
            importlib.import_module(library)
    killed = 0
    for number in range(APPENDS):
        child = crashes.fork()
        if child == 0:
            try:
                _append_one(
                    pickled, f"w{writer}-{number}", log, die_at=(number + writer) % _STEPS if number % 2 else None
                )
            except BaseException:
                Path(f"{log}.failed").write_text(traceback.format_exc(), encoding="utf-8")
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
    return killed


def _append_one(pickled: bytes, name: str, log: str, *, die_at: int | None) -> None:
    table = pickle.loads(pickled)
    if die_at is not None:
        _die(table, die_at)
    tables.append(table, [f"{name}.a", f"{name}.b"])
    Path(log, name).touch()


def _die(table: Any, at: int) -> None:
    """Kill this process before the step `at` of all that change the table."""
    left = [at]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return step

    store, engine = table.store, table.engine
    for name in ("put", "move", "sync", "delete"):
        setattr(store, name, counted(getattr(store, name)))
    engine.commit = counted(engine.commit)
