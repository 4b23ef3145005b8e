"""Bytes below `_seqlake/` that rot: what is read is right, or an error of ours says why not; never another value."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.reading.views import MediaView
from seqlake.errors import DuplicateSequenceError, SeqlakeError
from seqlake.tables.standalone import checkpoints
from seqlake.testing.oracle import crashes

from ..counting import Counts, many, seeded  # noqa: TID252 - tests are no package that could be named
from ..soak import SOAK  # noqa: TID252 - tests are no package that could be named
from . import rot

DERIVED = {"index", "checkpoints", "hint", "media", "derived", "staged"}
"""What can be made again: damage there costs speed, and nothing else."""

Truth = dict[int, dict[str, dict[str, Any]]]


def row(number: int) -> dict[str, Any]:
    return {"task": ["pick", "place"][number % 2], "action": np.full((3 + number, 2), number, np.float32)}


def told(ds: Any) -> dict[str, dict[str, Any]]:
    """Every cell of a version, files by their bytes."""
    found = {}
    for view in ds:
        cells = {name: view[name] for name in ds.schema.names}
        cells = {name: cell.tolist() if isinstance(cell, np.ndarray) else cell for name, cell in cells.items()}
        for name in {"cam", "log"} & cells.keys():
            if hasattr(cells[name], "reference"):  # else null, or of a type that nobody knows
                reference = cells[name].reference
                cells[name] = reference, Path(ds.location, reference).read_bytes()
        found[str(view.id)] = cells
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """A dataset with every kind of file: checkpoints, sides, videos, a retired shard, a marker, statistics."""
    root = tmp_path_factory.mktemp("rot") / "ds"
    log = root.parent / "log.mcap"
    log.write_bytes(b"messages")
    schema = {
        "task": pa.string(),
        "action": sl.Trajectory(dim=2),
        "cam": sl.Video(fps=10),
        "log": sl.ColumnType("mcap"),
    }
    truth: Truth = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "EVERY_VERSIONS", 4)
        ds = sl.create(root, sl.Schema(schema))
        acts = [
            lambda: ds.append([{"sequence_id": f"ep_{number}", **row(number)} for number in range(4)]),
            lambda: film(ds),
            lambda: ds.append([{"sequence_id": "logged", "log": sl.File(log), **row(5)}]),
            lambda: ds.add_column("grade", pa.int32(), values={f"ep_{number}": number * 10 for number in range(4)}),
            lambda: ds.update([{"sequence_id": "ep_1", "grade": 77}]),
            lambda: ds.rename_column("task", "what"),
            lambda: ds.delete(ids=["ep_3"]),
            lambda: ds.append([{"sequence_id": "late", "action": np.ones((2, 2), np.float32)}]),
        ]
        truth[0] = told(ds)
        for act in acts:
            act()
            truth[ds.version.id] = told(ds)
    sl.statistics(ds, ["action"])
    ds.table.begin()
    return root, truth


def film(ds: Any) -> None:
    with ds.writer() as writer:
        writer.add("filmed", cam=np.zeros((4, 16, 24, 3), np.uint8), **row(4))


@pytest.fixture
def rotten(made: tuple[Path, Truth], tmp_path: Path) -> Path:
    """A copy to be harmed."""
    return Path(shutil.copytree(made[0], tmp_path / "ds"))


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in (root / "_seqlake").rglob("*") if path.is_file())


class WrongError(AssertionError):
    """A value that is not the truth."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise WrongError(what)


def read(root: Path, truth: Truth) -> None:
    """The newest version: ids, cells, lengths, lookups, statistics, and what validation says."""
    ds = sl.open(root)
    newest = max(truth)
    demand(ds.version.id == newest, f"version {ds.version.id}")
    expected = truth[newest]
    demand({view.id for view in ds} == expected.keys(), "ids")
    demand(told(ds) == expected, "cells")
    lengths = dict(zip(expected, ds.source.lengths("action").tolist(), strict=True))
    demand(lengths == {key: len(cells["action"]) for key, cells in expected.items()}, "lengths")
    for key in expected:
        demand(ds.sequence(key)["action"].tolist() == expected[key]["action"], f"lookup of {key}")
    filmed = ds.sequence("filmed")["cam"]
    demand(isinstance(filmed, MediaView), "a video that is no video")
    demand(len(filmed) == 4, "frames")
    demand(filmed[3].shape == (16, 24, 3), "a frame")
    actions = np.concatenate([np.array(cells["action"], np.float64) for cells in expected.values()])
    mean = sl.statistics(ds, ["action"])["action"].mean
    demand(np.abs(mean - actions.mean(axis=0)).max() < 1e-12, "statistics")
    list(ds.validate(depth="files"))


def write(root: Path, truth: Truth) -> None:
    """Old versions, an id that is there, a new row, and a vacuum."""
    ds = sl.open(root)
    newest = max(truth)
    for version in ds.versions():
        if version.id < newest:
            demand(told(sl.open(root, version=version.id)) == truth[version.id], f"version {version.id}")
    for key in ("ep_0", "filmed", "late"):
        try:
            ds.append([{"sequence_id": key}])
        except DuplicateSequenceError:
            continue
        raise WrongError(f"{key} stands twice")
    ds.append([{"sequence_id": "new", "action": row(9)["action"]}])
    again = told(sl.open(root))
    demand({key: again.get(key) for key in truth[newest]} == truth[newest], "cells after a commit")
    demand(again.keys() - truth[newest].keys() == {"new"}, "rows after a commit")
    ds.vacuum(older_than=timedelta(0))
    demand(told(sl.open(root)) == again, "cells after a vacuum")


def outcome(root: Path, truth: Truth) -> str:
    """What a reader and a writer get."""
    return outcome_of(lambda: read(root, truth), lambda: write(root, truth))


def outcome_of(*acts: Callable[[], None]) -> str:
    """What became of some calls: `right`, `refused`, `bare` for an error that is not ours, or `wrong`."""
    found = []
    for act in acts:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                act()
        except (SeqlakeError, UserWarning) as error:
            found.append(f"refused: {error!r}")
        except WrongError as error:
            return f"wrong: {error}"
        except Exception as error:
            return f"bare: {error!r}"
    return found[0] if found else "right"


def harmed(made: tuple[Path, Truth], place: Path, path: str, how: str, dice: random.Random) -> str:
    if (rot.kind_of(path), how) == ("versions", "gone") and path.endswith(f"{max(made[1])}.json"):
        return "skipped"  # without its newest version a folder is that of the version before
    root = crashes.fresh_copy(made[0], place)
    whole = (root / path).read_bytes()
    try:
        rot.mutate(root / path, how, dice)
    except (pa.ArrowException, IndexError):
        return "skipped"  # such a change cannot be written down
    if (root / path).exists() and (root / path).read_bytes() == whole:
        return "skipped"
    return outcome(root, made[1])


def check_outcome(path: str, how: str, found: str) -> None:
    allowed = {"right", "skipped"} if rot.kind_of(path) in DERIVED else {"right", "refused", "skipped"}
    assert found.split(":", maxsplit=1)[0] in allowed, (path, how, found)


def test_the_dataset_is_right_as_it_is(made, rotten):
    assert {rot.kind_of(path) for path in files_of(rotten)} >= {*DERIVED, "versions", "side", "retired"}
    assert outcome(rotten, made[1]) == "right"


@pytest.mark.sampled
def test_rot_is_seen_or_harmless(made, tmp_path, monkeypatch):
    """Each kind of change, and each kind of file; all of them to all of these in the soak."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dice = random.Random(20261122)
    by_kind: dict[str, list[str]] = {}
    for path in files_of(made[0]):
        by_kind.setdefault(rot.kind_of(path), []).append(path)
    for paths in by_kind.values():
        ways = rot.mutations(paths[0])
        for how in ways if SOAK else dice.sample(ways, (len(ways) + 5) // 6):
            path = dice.choice(paths)
            check_outcome(path, how, harmed(made, tmp_path / "ds", path, how, dice))


def stranger(made: tuple[Path, Truth], place: Path, dice: random.Random) -> tuple[str, str, str]:
    """A change with all digests right: anything may be read then, but no error is one of Python's own."""
    kind = dice.choice(["versions", "index", "media", "checkpoints", "derived", "staged"])
    path = dice.choice([path for path in files_of(made[0]) if rot.kind_of(path) == kind])
    how = dice.choice([how for how in rot.mutations(path) if how in rot.WRITTEN])
    root = crashes.fresh_copy(made[0], place)
    try:
        rot.mutate(root / path, how, dice)
        rot.reseal(root, path)
    except (pa.ArrowException, LookupError, ValueError, TypeError, AttributeError):
        return path, how, "skipped"
    found = outcome(root, made[1])
    return path, how, "right: found" if found.startswith("wrong") and noticed(root) else found


def noticed(root: Path) -> bool:
    """Whether validation says that something is wrong."""
    try:
        return not sl.open(root).validate(depth="rows").ok
    except SeqlakeError:
        return True


@pytest.mark.mutations
@pytest.mark.parametrize("count", [12, pytest.param(1500, marks=pytest.mark.soak)])
def test_what_a_stranger_sealed_is_no_error_of_python(made, tmp_path, monkeypatch, count):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dice, count = random.Random(seeded(23)), many(count) if count > 12 else count
    found = [stranger(made, tmp_path / "ds", dice) for _ in range(count)]
    counts = Counts(reader="_seqlake, sealed again")
    for one in found:
        counted(counts, one[2])
    counts.cause = "whoever seals a file says what it holds" if counts.wrong else ""
    counts.keep()
    assert not [one for one in found if one[2].startswith("bare")]
    assert sum(one[2] != "skipped" for one in found) > count // 2


@pytest.mark.soak
@pytest.mark.mutations
def test_rot_of_every_file(made, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    counts: dict[str, Counts] = {}
    failures = []
    for seed in range(seeded(0), seeded(0) + many(int(os.environ.get("SEQLAKE_ROT", "12")))):
        dice = random.Random(seed)
        for path in files_of(made[0]):
            kind = rot.kind_of(path)
            for how in rot.mutations(path):
                found = harmed(made, tmp_path / "ds", path, how, dice)
                counted(counts.setdefault(kind, Counts(reader=f"_seqlake/{kind}")), found)
                try:
                    check_outcome(path, how, found)
                except AssertionError:
                    failures.append((seed, path, how, found))
    for one in counts.values():
        one.keep()
    assert not failures


def counted(counts: Counts, found: str) -> None:
    how = found.split(":", maxsplit=1)[0]
    if how != "skipped":
        counts.mutations += 1
        setattr(counts, how, getattr(counts, how) + 1)


# ---- what lies beside the tables of lakes


LAKES = {"delta": "delta:{}/ds", "iceberg": "iceberg:{}/w/robots.arm", "ducklake": "ducklake:sqlite:{}/m.db?table=arm"}


class Lake:
    """A table of a lake with offset indexes and statistics of ours, harmed where it lies: its paths are absolute."""

    def __init__(self, home: str, place: Path) -> None:
        self.place, self.uri = place, LAKES[home].format(place)
        ds = sl.create(self.uri, sl.Schema({"sequence_id": pa.string(), "action": sl.Trajectory(dim=2)}))
        for number in range(2):
            ds.append([{"sequence_id": f"ep_{number}{i}", "action": row(i)["action"]} for i in range(3)])
        sl.statistics(ds, ["action"])
        self.truth = told(ds)
        self.whole = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        self.ours = [path for path in self.whole if "_seqlake" in path.parts or path.suffix == ".puffin"]

    def read(self) -> None:
        ds = sl.open(self.uri)
        demand(told(ds) == self.truth, "cells")
        lengths = dict(zip((view.id for view in ds), ds.source.lengths("action").tolist(), strict=True))
        demand(lengths == {key: len(cells["action"]) for key, cells in self.truth.items()}, "lengths")
        for key, cells in self.truth.items():
            demand(ds.sequence(key)["action"].tolist() == cells["action"], f"lookup of {key}")
        steps = np.concatenate([np.array(cells["action"], np.float64) for cells in self.truth.values()])
        demand(np.abs(sl.statistics(ds, ["action"])["action"].mean - steps.mean(axis=0)).max() < 1e-12, "statistics")
        list(ds.validate(depth="rows"))

    def write(self) -> None:
        try:
            sl.open(self.uri).append([{"sequence_id": "ep_01"}])
        except DuplicateSequenceError:
            return
        raise WrongError("ep_01 stands twice")

    def harmed(self, path: Path, how: str, dice: random.Random) -> str:
        try:
            rot.mutate(path, how, dice)
        except (pa.ArrowException, IndexError, ValueError):
            return "skipped"  # such a change cannot be written down
        try:
            return outcome_of(self.read, self.write)
        finally:
            for one in [one for one in self.place.rglob("*") if one.is_file() and one not in self.whole]:
                one.unlink()
            for one, data in self.whole.items():
                if not one.exists() or one.read_bytes() != data:
                    one.write_bytes(data)

    def ways(self, path: Path) -> list[str]:
        parts = path.parts
        within = "/".join(parts[parts.index("_seqlake") :]) if "_seqlake" in parts else "_seqlake/puffin"
        return rot.mutations(within)


@pytest.mark.mutations
@pytest.mark.parametrize("times", [pytest.param(1, id="once"), pytest.param(25, id="often", marks=pytest.mark.soak)])
@pytest.mark.parametrize("home", LAKES)
def test_rot_beside_tables_of_lakes(home, times, tmp_path, monkeypatch):
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg", "ducklake": "duckdb"}[home])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lake, counts, dice = Lake(home, tmp_path), Counts(reader=f"_seqlake, {home}"), random.Random(seeded(7))
    assert outcome_of(lake.read, lake.write) == "right"
    assert lake.ours
    for _ in range(many(times)):
        for path in lake.ours if times > 1 else dice.sample(lake.ours, 1):
            for how in lake.ways(path) if times > 1 else dice.sample(lake.ways(path), 4):
                found = lake.harmed(path, how, dice)
                counted(counts, found)
                if not found.startswith(("right", "skipped", "refused")):
                    counts.examples.append(f"{path.name} {how} {found}")
    counts.keep()
    assert not counts.bad(), counts.examples
