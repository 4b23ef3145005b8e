"""Ctrl-C at any line of ours, of every change in every home: it was made or it was not, and it can be repeated."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset import reshaping
from seqlake.dataset.reshaping import trimming
from seqlake.errors import DatasetNotFoundError
from seqlake.versions import markers

from ..counting import many, seeded  # noqa: TID252 - tests are no package that could be named
from ..homes import PLACES, Home, rows  # noqa: TID252 - tests are no package that could be named
from .test_interrupted import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGES: dict[str, Callable[[sl.Dataset, Home], Any]] = {
    "append": lambda ds, home: ds.append([home.row(9)]),
    "upsert": lambda ds, home: ds.upsert([home.row(1, steps=30), home.row(8)]),
    "update": lambda ds, _: ds.update([{"sequence_id": "ep_1", "split": "test"}]),
    "delete": lambda ds, _: ds.delete(ids=["ep_1"]),
    "add_column": lambda ds, _: ds.add_column("note", pa.string()),
    "rename_column": lambda ds, _: ds.rename_column("split", "part", rewrite=True),
    "label": lambda ds, _: ds.add_column("steps", pa.int64(), sql="len(action)"),
    "fold": lambda ds, _: ds.fold(),
    "convert_units": lambda ds, _: ds.convert_units("action", "deg"),
    "set_metadata": lambda ds, _: ds.set_metadata({"license": "MIT"}),
    "tag": lambda ds, _: ds.tag("v1"),
    "rollback": lambda ds, _: ds.rollback(ds.versions()[2]),
    "compact": lambda ds, _: sl.compact(ds),
    "vacuum": lambda ds, _: ds.vacuum(older_than=timedelta(0)),
}
MAKES: dict[str, Callable[[sl.Dataset, Home], Any]] = {
    "convert": lambda ds, home: sl.convert(ds, home.place("new"), workers=1, progress=False),
    "merge": lambda ds, home: sl.merge([ds], home.place("new")),
    "union": lambda ds, home: sl.merge(
        [ds.select("sequence_id", "action", "log"), ds], home.place("new"), union=True, prefixes=["a", "b"]
    ),
    "resample": lambda ds, home: sl.resample(ds, home.place("new"), fps=20),
    "repack": lambda ds, home: reshaping.repack(ds, home.place("new")),
    "subset": lambda ds, home: reshaping.subset(ds.where("split = 'val'"), home.place("new")),
    "trim": lambda ds, home: trimming.trim(ds.where("true"), home.place("new"), start=3),
    "segment": lambda ds, home: trimming.segment(ds.where("true"), home.place("new"), length=10),
}
READS: dict[str, Callable[[sl.Dataset, Home], Any]] = {
    "validate": lambda ds, _: ds.validate(depth="rows").ok,
    "statistics": lambda ds, _: sl.statistics(ds),
    "loader": lambda ds, _: sum(1 for _ in sl.Loader(ds, window={"action": range(2)}, batch_size=8)),
}
VERBS = {**CHANGES, **MAKES, **READS}


def collect_later(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long after that writers without a sign of life are given up."""
    now = markers.now
    with monkeypatch.context() as patch:
        patch.setattr(markers, "now", lambda: now() + timedelta(days=1))
        sl.open(place).vacuum(older_than=timedelta(days=1))


class Verb:
    """A verb that was once done without being interrupted."""

    def __init__(self, name: str, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.home, self.patch = name, home, monkeypatch
        self.target = home.place("new" if name in MAKES else "ds")
        self.before = rows(home.place())
        self.do()  # what is imported or made once is done
        home.fresh()
        ds = sl.open(home.place())
        self.lines, _ = interrupted(lambda: VERBS[name](ds, home), 0)
        self.after = rows(self.target)
        collect_later(self.target, monkeypatch)
        self.left = home.files("new" if name in MAKES else "ds")

    def do(self) -> Any:
        return VERBS[self.name](sl.open(self.home.place()), self.home)

    def found(self) -> list[str] | None:
        try:
            return rows(self.target)
        except DatasetNotFoundError:
            return None

    def check(self, line: int) -> None:
        """Interrupt it there: nothing of it is seen, or all; a repeat makes it, and nothing else is left then."""
        self.home.fresh()
        ds = sl.open(self.home.place())
        reached, ended = interrupted(lambda: VERBS[self.name](ds, self.home), line)
        where = (self.home.kind, self.name, line)
        assert reached < line or not ended, where
        found = self.found()
        assert found in ([None, self.after] if self.name in MAKES else [self.before, self.after]), where
        if found != self.after or self.before == self.after:
            if self.name not in MAKES or found is None:
                self.do()
            assert self.found() == self.after, where
        assert rows(self.home.place()) == (self.before if self.name in MAKES else self.after), where
        assert sl.open(self.target).validate(depth="rows").ok, where
        collect_later(self.target, self.patch)
        assert self.home.files("new" if self.name in MAKES else "ds") == self.left, where


def sampled(verbs: list[str], kind: str, tmp_path: Path, patch: pytest.MonkeyPatch, *, moments: int, seed: int) -> None:
    dice = np.random.default_rng(seed)
    for number, name in enumerate(verbs):
        (tmp_path / str(number)).mkdir()
        verb = Verb(name, Home(kind, tmp_path / str(number)), patch)
        for line in dice.integers(1, verb.lines, moments).tolist():
            verb.check(line)


@pytest.mark.sampled(every=2, start=1)
@pytest.mark.parametrize(("kind", "verb"), [("iceberg", "vacuum"), ("delta", "convert"), ("standalone", "upsert")])
def test_it_was_made_or_not(kind: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled([verb], kind, tmp_path, monkeypatch, moments=3, seed=8)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that falls into a __del__
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("verb", VERBS)
def test_it_was_made_or_not_wherever_it_comes(
    kind: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled([verb], kind, tmp_path, monkeypatch, moments=many(40), seed=seeded(9))
