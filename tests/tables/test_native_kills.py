"""A writer whose shards or commits native code makes, killed before every system call that changes a file.

Kills through our own seams (`test_kill.py`) do not reach these: here libc is in between (`../dying.c`).
"""

from __future__ import annotations

import random
import shutil
import sys
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.dying import Zygote, built

import seqlake as sl
from seqlake.errors import DamagedTableError
from seqlake.testing.oracle.crashes import fresh_copy

from ..counting import many, tell  # noqa: TID252 - tests are no package that could be named
from .acting import ACTIONS, prepare, row

HOMES = {"lance shards": ("{}", "lance"), "vortex shards": ("{}", "vortex"), "lance table": ("lance:{}", None)}
NAMING = {  # lakes, of which only what names a version is killed here; the same of those above is among their actions
    "delta": ("delta:{}/ds", None), "iceberg": ("iceberg:{}/warehouse/robots.ds", None),
    "ducklake": ("ducklake:sqlite:{}/meta.sqlite?table=ds", None),
}  # fmt: skip
_NEEDS = {"delta": "deltalake", "iceberg": "pyiceberg", "ducklake": "duckdb"}
ACTING = Path(__file__).with_name("acting.py")
pytestmark = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs libc and a compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: Any) -> Path:
    return built(tmp_path_factory.mktemp("dying"))


class Writers:
    """Of one action on copies of one dataset."""

    def __init__(self, home: str, action: str, folder: Path, library: Path) -> None:
        place, shards = {**HOMES, **NAMING}[home]
        pytest.importorskip(_NEEDS.get(home, home.partition(" ")[0]))
        self.base, self.work, self.action = folder / "base", folder / "work", action
        self.place = place.format(self.work)
        prepare(self.place, shards)  # lakes note absolute places
        fresh_copy(self.work, self.base)
        self._zygote = Zygote(ACTING, self.place, str(self.work), action, library=library)
        fresh_copy(self.base, self.work)
        self.before = self.state()
        self.steps = self.run(-1)["steps"]
        self.after = self.state()
        assert (self.before == self.after) == (action in {"compact", "vacuum"})

    def run(self, at: int) -> dict[str, Any]:
        """What became of a writer that was to die before this step."""
        fresh_copy(self.base, self.work)
        return self._zygote.run(at=at)

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        """By id."""
        return by_id(sl.open(self.place, **options).to_arrow())

    def state(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The rows, and the rows of each version that has a name."""
        return self.rows(), {name: self.rows(version=name) for name in sl.open(self.place).tags()}

    def check(self, acknowledged: bool) -> None:
        """All of it, or nothing; every version that is listed can be read; the next writer goes on."""
        here, named = self.state()
        assert (here, named) == self.after or (not acknowledged and (here, named) == self.before)
        ds = sl.open(self.place)
        assert ds.validate(depth="rows").ok
        for version in ds.versions():
            try:
                assert len(self.rows(version=version)) == version.rows
            except DamagedTableError:  # Lance removes what an expired version needs before the version
                assert (self.action, version.id < ds.versions()[-1].id) == ("vacuum", True)
        ds.append([row(100)])
        ds.vacuum(older_than=timedelta(0))
        there, still = self.state()
        assert still == named
        assert [one for one in there if one["sequence_id"] != "ep_100"] == here
        assert len(there) == len(here) + 1
        for version in sl.open(self.place).versions():
            self.rows(version=version)
        if self.place.startswith("lance:"):
            import lance

            assert by_id(lance.dataset(str(self.work)).to_table()) == there

    def close(self) -> None:
        self._zygote.close()


def by_id(table: Any) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda one: one["sequence_id"])


def killed(home: str, action: str, folder: Path, library: Path, *, share: float) -> tuple[int, int]:
    """Kills and steps; with a share below 1 some of the steps, the last ones among them."""
    writers = Writers(home, action, folder, library)
    try:
        steps = range(writers.steps + 1)
        chosen = sorted(random.Random(action).sample(steps, max(1, round(share * len(steps)))))
        kills = 0
        for at in chosen:
            outcome = writers.run(at)
            kills += outcome["killed"]
            try:
                writers.check(acknowledged=not outcome["killed"])
            except Exception as error:
                raise AssertionError(f"killed before step {at} of {writers.steps}: {error!r}") from error
        return kills, writers.steps
    finally:
        writers.close()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("home", "action", "share"), [("delta", "tag", 0.25), ("iceberg", "untag", 0.04)])
def test_killed_while_it_names_a_version(home: str, action: str, share: float, tmp_path: Path, library: Path) -> None:
    kills, steps = killed(home, action, tmp_path, library, share=share)
    assert (kills > 0, steps > 1) == (True, True)


def test_killed_while_it_appends_to_a_lance_table(tmp_path: Path, library: Path) -> None:
    kills, steps = killed("lance table", "append", tmp_path, library, share=0.06)
    assert (kills > 0, steps > 20) == (True, True)


@pytest.mark.soak
@pytest.mark.parametrize(("home", "action"), [*product(HOMES, ACTIONS), *product(NAMING, ("tag", "untag", "vacuum"))])
def test_killed_before_every_call(home: str, action: str, tmp_path: Path, library: Path) -> None:
    kills, steps = killed(home, action, tmp_path, library, share=many(1000) / 1000)
    tell(killed=f"{home}, {action}", kills=kills, steps=steps)
    print(f"{home}, {action}: {kills} kills, {steps} calls")
    assert kills > 0  # a file of a name goes by one call
