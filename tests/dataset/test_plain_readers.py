"""What is left without the log: `data/*.parquet` and `mixtrain.json` contradict nothing, and after `fold` say all.

A model in plain Python knows what the dataset means. After each verb `_seqlake/` is taken away from a copy of the
folder, and pyarrow and json alone compare what is there with the model.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl

ACTION = {"type": "trajectory", "dim": 2}
CAM = {"type": "video", "fps": 10}


class Model:
    """A dataset, and what it ought to hold: id -> cells, column -> column type or None."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        schema = {"reward": pa.float32(), "task": pa.string(), "action": sl.Trajectory(dim=2), "cam": sl.Video(fps=10)}
        self.ds = sl.create(folder, sl.Schema(schema))
        self.rows: dict[str, dict[str, object]] = {}
        self.types: dict[str, dict[str, object] | None] = {"reward": None, "task": None, "action": ACTION, "cam": CAM}
        self.metadata: dict[str, object] = {}
        self.count = 0
        self.past: dict[int, object] = {}

    def remember(self) -> None:
        state = (self.rows, self.types, self.metadata)
        self.past[self.ds.version.id] = copy.deepcopy(state)

    def find(self, kind: str) -> str | None:
        """The first column of a type; of none for ""."""
        return next((n for n, t in self.types.items() if (t or {"type": ""})["type"] == kind), None)

    def plain(self) -> str | None:
        """The first column of plain numbers."""
        return next((n for n, t in self.types.items() if t is None and n.startswith(("reward", "score"))), None)

    def new_row(self) -> tuple[str, dict[str, object]]:
        number, self.count = self.count, self.count + 1
        cells: dict[str, object] = dict.fromkeys(self.types)
        for name, kind in self.types.items():
            if kind is not None and kind["type"] == "trajectory":
                cells[name] = [[float(number), float(step)] for step in range(3)]
            elif kind is not None:
                cells[name] = f"videos/{number}.mp4"
            elif name.startswith(("reward", "score")):
                cells[name] = float(number)
        return f"ep_{number}", cells


# ---- verbs
def append(m: Model) -> None:
    new = dict(m.new_row() for _ in range(2))
    m.rows |= new
    m.ds.append([{"sequence_id": one, **arrays(cells)} for one, cells in new.items()])


def arrays(cells: dict[str, object]) -> dict[str, object]:
    return {n: np.array(v, np.float32) if isinstance(v, list) else v for n, v in cells.items() if v is not None}


def upsert(m: Model) -> None:
    one, cells = m.new_row()
    m.rows[one] = cells
    changed = next(iter(m.rows))
    given = [{"sequence_id": one, **arrays(cells)}]
    signal = m.find("trajectory")
    if signal is not None and changed != one:
        m.rows[changed][signal] = [[9.0, 9.0]]
        given.append({"sequence_id": changed, signal: np.full((1, 2), 9, np.float32)})
    m.ds.upsert(given)


def update(m: Model) -> None:
    """The first plain column of numbers, whether a file holds it or not."""
    name = m.plain()
    if name is None or not m.rows:
        return
    one = min(m.rows)
    m.rows[one][name] = 0.5
    m.ds.update([{"sequence_id": one, name: 0.5}])


def label(m: Model) -> None:
    """A column that lies beside old files; the first time it is added."""
    one = max(m.rows)
    if "good" not in m.types:
        m.types["good"] = None
        for cells in m.rows.values():
            cells["good"] = None
        m.rows[one]["good"] = True
        m.ds.add_column("good", pa.bool_(), values={one: True})
        return
    m.rows[one]["good"] = False
    m.ds.update([{"sequence_id": one, "good": False}])


def delete(m: Model) -> None:
    one = min(m.rows)
    if len(m.rows) > 2:
        del m.rows[one]
        m.ds.delete(ids=[one])


def add(m: Model, name: str, kind: dict[str, object] | None) -> None:
    m.types[name] = kind
    for cells in m.rows.values():
        cells[name] = None
    declared = {"video": sl.Video(fps=10), "trajectory": sl.Trajectory(dim=2)}
    m.ds.add_column(name, declared[str(kind["type"])] if kind else pa.float32())


def rename(m: Model, old: str, new: str) -> None:
    m.types = {new if n == old else n: kind for n, kind in m.types.items()}
    for one, cells in m.rows.items():
        m.rows[one] = {new if n == old else n: value for n, value in cells.items()}
    m.ds.rename_column(old, new)


def drop(m: Model, name: str) -> None:
    del m.types[name]
    for cells in m.rows.values():
        del cells[name]
    m.ds.drop_column(name)


def add_video(m: Model) -> None:
    """Under the first name that is free, whatever older files hold under it."""
    add(m, next(n for n in ("action", "cam", "reward", "cam2", "cam3", "cam4", "cam5") if n not in m.types), CAM)


def add_scores(m: Model) -> None:
    add(m, next(n for n in ("reward", "score", "score2", "score3", "score4", "score5") if n not in m.types), None)


def rename_signal(m: Model) -> None:
    name = m.find("trajectory")
    if name is not None:
        rename(m, name, next(n for n in ("act", "action", "cam", "move") if n not in m.types))


def rename_plain(m: Model) -> None:
    name = m.plain()
    if name is not None:
        rename(m, name, next(n for n in ("score", "reward", "score2", "score3") if n not in m.types))


def swap(m: Model) -> None:
    if {"cam", "action"} <= m.types.keys():
        rename(m, "cam", "for_now")
        rename(m, "action", "cam")
        rename(m, "for_now", "action")


def drop_last(m: Model) -> None:
    if len(m.types) > 2:
        drop(m, list(m.types)[-1])


def drop_first(m: Model) -> None:
    if len(m.types) > 2:
        drop(m, next(iter(m.types)))


def drop_and_add(m: Model) -> None:
    """A column of another type under the name of one that the files hold."""
    name = m.find("trajectory")
    if name is not None:
        drop(m, name)
        add(m, name, CAM)


def add_drop_and_add(m: Model) -> None:
    """A name that was given before, and that no file ever held."""
    if "again" not in m.types:
        add(m, "again", CAM)
    drop(m, "again")
    add(m, "again", None)


def widen(m: Model) -> None:
    name = m.plain()
    if name is not None:
        m.ds.widen_column(name, pa.float64())


def set_type(m: Model) -> None:
    name = m.find("video")
    if name is not None:
        m.types[name] = {"type": "video", "fps": 25, "codec": "h264"}
        m.ds.set_type(name, sl.Video(fps=25, codec="h264"))


def set_metadata(m: Model) -> None:
    m.metadata["license"] = f"version {m.ds.version.id}"
    m.ds.set_metadata({"license": m.metadata["license"]})


def compact(m: Model) -> None:
    sl.compact(m.ds)


def vacuum(m: Model) -> None:
    m.ds.vacuum(older_than=timedelta(0))
    m.past = {}


def fold(m: Model) -> None:
    m.ds.fold()


def rollback(m: Model) -> None:
    if m.past:
        version = random.Random(len(m.past)).choice(sorted(m.past))
        m.rows, m.types, m.metadata = copy.deepcopy(m.past[version])
        m.ds.rollback(version)


def relocate(m: Model) -> None:
    old, new = ("videos", "moved") if "videos/" in str(m.rows) else ("moved", "videos")
    if f"{old}/" not in str(m.rows):
        return
    for cells in m.rows.values():
        for name, value in cells.items():
            if isinstance(value, str) and value.startswith(f"{old}/"):
                cells[name] = value.replace(old, new)
    sl.relocate(m.ds, old, new, allow_missing=True)


def splits(m: Model) -> None:
    sl.assign_splits(m.ds, {"train": 0.5, "val": 0.5}, column="split")
    m.types.setdefault("split", None)
    truth = m.ds.select("sequence_id", "split").to_arrow().to_pylist()
    for row in truth:
        m.rows[row["sequence_id"]]["split"] = row["split"]


def adopt_shard(m: Model) -> None:
    """A file of another writer, with the columns of now; its numbers as pyarrow likes them."""
    one, cells = m.new_row()
    m.rows[one] = cells
    kinds = {n: m.ds.schema[n].stored() for n in m.types}
    table = pa.table({"sequence_id": [one], **{n: pa.array([cells[n]], kinds[n]) for n in m.types}})
    pq.write_table(table, m.folder / f"data/theirs-{m.count}.parquet")
    m.ds.adopt()


def adopt_metadata(m: Model) -> None:
    """Somebody edits `mixtrain.json` by hand, without knowing what our key is for."""
    path = m.folder / "mixtrain.json"
    said = json.loads(path.read_text())
    m.metadata["note"] = said["note"] = f"by hand, version {m.ds.version.id}"
    path.write_text(json.dumps(said))
    m.ds.adopt()


VERBS = (
    *(append, upsert, update, label, delete, add_video, add_scores, rename_signal, rename_plain, swap),
    *(
        drop_last,
        drop_first,
        drop_and_add,
        add_drop_and_add,
        widen,
        set_type,
        set_metadata,
        compact,
        vacuum,
        fold,
        rollback,
    ),
    *(fold, rollback, relocate, splits, adopt_shard, adopt_metadata),
)


# ---- readers without the log
def bare(m: Model, tmp_path: Path) -> Path:
    """The folder without `_seqlake/`."""
    there = tmp_path / "bare"
    shutil.rmtree(there, ignore_errors=True)
    shutil.copytree(m.folder, there)
    shutil.rmtree(there / "_seqlake")
    return there


def fits(kind: dict[str, object] | None, arrow: pa.DataType) -> bool:
    if kind is None:
        return not pa.types.is_list(arrow)
    return pa.types.is_list(arrow) if kind["type"] == "trajectory" else pa.types.is_string(arrow)


def refuse_contradictions(m: Model, folder: Path) -> None:
    """Every name of the metadata is in the files or said to be elsewhere; every cell of the files is the model's."""
    mixtrain = json.loads((folder / "mixtrain.json").read_text())
    said = {"renamed": {}, "dropped": [], "beside": {}, "added": [], "reused": [], **mixtrain.get("x_seqlake", {})}
    types = mixtrain.get("column_types", {})
    tables = [pq.read_table(path) for path in sorted((folder / "data").glob("*.parquet"))]
    held = {name for table in tables for name in table.schema.names}
    old = said["renamed"]

    assert types == {
        **{n: k for n, k in m.types.items() if k is not None},
        **{o: m.types[n] for o, n in old.items() if m.types[n] is not None},
    }
    assert {key: value for key, value in mixtrain.items() if key not in {"mixtrain", "column_types", "x_seqlake"}} == (
        m.metadata
    )
    for name in types:
        elsewhere = {*(n for o, n in old.items() if o in held), *said["beside"], *said["added"], *said["reused"]}
        assert name in held or name in elsewhere or not m.rows, f"{name} is nowhere"
    assert set(old.values()) <= m.types.keys()
    assert not (set(old) | set(said["dropped"])) & m.types.keys()

    seen: list[str] = []
    for table in tables:
        for field in table.schema:
            assert fits(types.get(field.name), field.type) or field.name in said["dropped"], field
        for row in table.to_pylist():
            one = row.pop("sequence_id")
            seen.append(one)
            cells = {old.get(n, n): v for n, v in row.items() if n not in said["dropped"]}
            assert cells.keys() <= m.types.keys(), "a column that nothing explains"
            for name in m.types.keys() - cells.keys() - set(said["beside"]):
                assert m.rows[one][name] is None, f"{name} of {one} is in no file, and nothing says where"
            for name, value in cells.items():
                assert value == m.rows[one][name], (one, name)
    assert sorted(seen) == sorted(m.rows)


def refuse_other_truth(m: Model, folder: Path) -> None:
    """After a fold: everything, read by people who never heard of seqlake."""
    mixtrain = json.loads((folder / "mixtrain.json").read_text())
    types = {name: kind for name, kind in m.types.items() if kind is not None}
    assert mixtrain == {"mixtrain": "1.0", **({"column_types": types} if types else {}), **m.metadata}
    table = pq.read_table(folder / "data") if m.rows else pa.table({"sequence_id": []})
    if m.rows:
        assert set(table.schema.names) == {"sequence_id", *m.types}
    assert {row.pop("sequence_id"): row for row in table.to_pylist()} == m.rows


def check(m: Model, tmp_path: Path) -> None:
    refuse_contradictions(m, bare(m, tmp_path))
    alone = tmp_path / "alone"
    shutil.rmtree(alone, ignore_errors=True)
    shutil.copytree(m.folder, alone)
    ds = sl.open(alone)
    before = ds.fold()
    assert not ds.unfolded
    assert ds.fold() == before  # nothing more is due
    assert not ds.validate(depth="rows").errors
    shutil.rmtree(alone / "_seqlake")
    refuse_other_truth(m, alone)
    assert not sl.open(alone).validate(depth="rows").warnings


def made(tmp_path: Path) -> Model:
    m = Model(tmp_path / "arm")
    for _ in range(2):
        append(m)
        m.remember()
    return m


@pytest.mark.sampled
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("before", [(), (label, rename_signal, drop_first, append)], ids=["fresh", "unfolded"])
def test_nothing_contradicts_the_files_after(verb, before, tmp_path) -> None:
    m = made(tmp_path)
    for one in before:
        one(m)
    verb(m)
    check(m, tmp_path)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_contradicts_the_files_after_any_of_them(seed, tmp_path) -> None:
    rng = random.Random(seed)
    m = made(tmp_path)
    for _ in range(12):
        verb = rng.choice(VERBS)
        verb(m)
        m.remember()
        try:
            refuse_contradictions(m, bare(m, tmp_path))
        except AssertionError as error:
            raise AssertionError(f"after {verb.__name__}: {error}") from error
    check(m, tmp_path)
