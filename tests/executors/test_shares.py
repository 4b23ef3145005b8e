"""Every verb gives the same on processes, on Ray, by shares and after kills; what is of another run is refused."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqlake as sl
from seqlake.errors import SeqlakeError
from seqlake.packing import pack, unpack
from seqlake.protocols import Written
from seqlake.shares import Ended, Finish, Resumable, Share, inner_of
from seqlake.testing.executors import ExecutorTests

from . import sharing
from .sharing import HERE, PASSES, SHARES, SMALL, VERBS, WRITERS, copied, outcome
from .values import nested

others = pytest.fixture(scope="module")(sharing.others)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("recorded")
    sharing.record(place)
    return place


@pytest.fixture(autouse=True)
def small_parts(monkeypatch, tmp_path) -> None:
    for name, value in SMALL.items():
        module, _, attribute = name.rpartition(".")
        monkeypatch.setattr(import_module(module), attribute, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class TestResumable(ExecutorTests):
    """An executor like any other."""

    @pytest.fixture
    def executor(self, tmp_path) -> Resumable:
        return Resumable(folder=tmp_path / "work", on=HERE)


@pytest.fixture
def alone(recorded, tmp_path):
    """What a verb leaves in one process, with nothing of it divided."""
    return lambda verb: outcome(verb, copied(recorded, verb, tmp_path / "alone"), tmp_path / "out-alone", HERE)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("verb", VERBS)
def test_shares_give_what_one_process_gives(verb, recorded, others, alone, tmp_path) -> None:
    """In any order, twice, in other processes, killed and run again; finished too early, well, and once more."""
    place, out, work = copied(recorded, verb, tmp_path / "ds"), tmp_path / "out", tmp_path / "work"

    def share(number, **fate):
        return others.share(verb, place, out, work, number, **fate)

    assert "No share has left anything" in share(None)
    for number in range(PASSES.get(verb, 1)):
        assert share(2).startswith("Ended: Share 2 of 3 has done its tasks"), number
        if number == 0:
            assert share(0, die_after=0) == "Killed"
            refused = share(None)
            assert "of pass 0 have no receipt" in refused
            assert "of the shares 0, 1 of 3. Run these shares again (--task 0/3), then finish." in refused
            assert share(2).startswith("Ended")
        before = {path: path.stat().st_mtime_ns for path in work.glob("pass-*/0*/0*")}
        for again in (0, 1):
            assert share(again).startswith("Ended"), number
        assert before or verb == "compact"  # four shards become two: the last of three shares has nothing to do
        assert before.items() <= {path: path.stat().st_mtime_ns for path in work.glob("pass-*/0*/0*")}.items()
    assert len(list(work.glob("pass-*"))) == PASSES.get(verb, 1)
    if verb in WRITERS:
        assert not sl.open(out).shards()
    result = outcome(verb, place, out, Finish(folder=work))
    assert result == alone(verb)
    assert [path.name for path in work.iterdir()] == ["finished.json"]
    over = share(None), share(1)
    if verb not in {"compact", "index", "statistics"}:  # which find that nothing is to be done
        assert all("is over: nothing is left to do" in text for text in over)
    if verb in WRITERS or verb in {"compact", "compute"}:
        ds = sl.open(out if verb in WRITERS else place)
        ds.vacuum(older_than=timedelta(0))  # what the killed share staged
        assert not [path for path in Path(ds.location).rglob("*") if path.parent.name == "staged"]
        assert not ds.validate(depth="files").errors


@pytest.mark.sampled(every=3, start=1)
@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupted_run_goes_on(verb, recorded, alone, tmp_path, monkeypatch) -> None:
    """What was finished is not done again, whatever stopped the first process."""
    place, out, work = copied(recorded, verb, tmp_path / "ds"), tmp_path / "out", tmp_path / "work"
    done: list[object] = []

    class Tired:
        """Stops in the second task that it is given."""

        def __init__(self, tasks: int) -> None:
            self.tasks = tasks

        def run(self, function, tasks, /, *, done, tick) -> None:
            for task in tasks:
                if not self.tasks:
                    raise KeyboardInterrupt
                self.tasks -= 1
                result = function(task)
                ran.append(repr(task)[:200])
                done(task, result)
                tick()

    ran = done
    with pytest.raises(KeyboardInterrupt):
        VERBS[verb](sl.open(place), out, Resumable(folder=work, on=Tired(1)))
    assert len(ran) == 1
    assert work.is_dir()
    result = outcome(verb, place, out, Resumable(folder=work, on=Tired(1000)))
    assert len(ran) > 1
    assert len(ran) == len(set(ran)) or verb in PASSES  # each pass has the same shards
    assert result == alone(verb)
    assert not work.exists()


@pytest.mark.sampled(every=3, start=2)
@pytest.mark.parametrize("verb", VERBS)
def test_processes_and_ray_give_what_one_process_gives(verb, recorded, alone, cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("seqlake.dataset.similarity.pairs.ROWS", 4096)  # as Ray's workers have it
    here = alone(verb)
    place, out = copied(recorded, verb, tmp_path / "ds-ray"), tmp_path / "out-ray"
    assert outcome(verb, place, out, "ray") == here
    place, out = copied(recorded, verb, tmp_path / "ds-none"), tmp_path / "out-none"
    undivided = outcome(verb, place, out, None)
    if verb in WRITERS or verb == "compact":  # borders of shards are those of tasks
        here, undivided = here[:-1], undivided[:-1]
    assert undivided == here


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("verb", ["trim", "compact", "convert", "compute"])
def test_a_finish_that_is_killed_after_its_commit_commits_once(verb, recorded, others, alone, tmp_path) -> None:
    place, out, work = copied(recorded, verb, tmp_path / "ds"), tmp_path / "out", tmp_path / "work"
    for number in range(SHARES):
        others.share(verb, place, out, work, number)
    assert others.share(verb, place, out, work, None, die_at_the_end=True) == "Killed"
    again = others.share(verb, place, out, work, None)
    assert again == "Done" or "belongs to another run" in again
    ds = sl.open(out if verb in WRITERS else place)
    operations = [version.operation for version in ds.versions()]
    reference = sl.open(tmp_path / "out-alone" if verb in WRITERS else tmp_path / "alone") if alone(verb) else None
    assert operations == [version.operation for version in reference.versions()]
    names = [name for name in ds.schema if ds.schema[name].medium is None]
    assert ds.select(*names).to_arrow().equals(reference.select(*names).to_arrow())


@pytest.mark.soak
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("seed", range(6))
def test_shares_that_are_killed_anywhere(verb, seed, recorded, others, alone, tmp_path) -> None:
    """Each is run until it gets through; so is what finishes."""
    chance = random.Random(f"{verb} {seed}")
    place, out, work = copied(recorded, verb, tmp_path / "ds"), tmp_path / "out", tmp_path / "work"
    killed = 0

    def life(before: int) -> float:
        """Seconds, longer and longer: on a busy machine, too, it comes to an end."""
        return chance.expovariate(8) * (1 + before / 4)

    for _ in range(PASSES.get(verb, 1)):
        for number in chance.sample(range(SHARES), SHARES):
            while (said := others.share(verb, place, out, work, number, die_within=life(killed))) == "Killed":
                killed += 1
                assert killed < 500
            assert said.startswith("Ended"), said
    for _ in range(chance.randrange(3)):
        if others.share(verb, place, out, work, None, die_within=chance.uniform(0, 0.05)) != "Killed":
            return  # finished; what it gave went with the process
    result = outcome(verb, place, out, Finish(folder=work))
    assert result == alone(verb)


def trimmed(recorded, tmp_path, number=0, *, of=SHARES, start=2, name="out", **how):
    ds = sl.open(tmp_path / "ds" if (tmp_path / "ds").exists() else copied(recorded, "trim", tmp_path / "ds"))
    with Share(folder=tmp_path / "work", number=number, of=of, on=HERE, **how) as share:
        sl.trim(ds, tmp_path / name, start=start, on=share)
        raise AssertionError("a share ends its block")
    return ds


def test_a_folder_belongs_to_one_run(recorded, tmp_path) -> None:
    """Of one verb, its arguments, so many shares and one state of the dataset."""
    ds, work = trimmed(recorded, tmp_path), tmp_path / "work"
    for how, what in (({"of": 4}, "shares"), ({"start": 3}, "borders"), ({"name": "other"}, "out")):
        with pytest.raises(SeqlakeError, match=f"belongs to another run: {what} differ"):
            trimmed(recorded, tmp_path, 1, **how)
    with pytest.raises(SeqlakeError, match="belongs to another run: .*shares.* differ"):
        sl.trim(ds, tmp_path / "out", start=2, on=Resumable(folder=work, on=HERE))
    for verb in ("repack", "compact", "statistics", "convert", "index"):
        theirs = sl.open(copied(recorded, verb, tmp_path / f"{verb}-ds"))
        with pytest.raises(SeqlakeError, match="belongs to another run: .*verb.* differ"):
            VERBS[verb](theirs, tmp_path / f"{verb}-out", Finish(folder=work))
        assert not (tmp_path / f"{verb}-out").exists()
    ds.delete(ids=["ep_0_0"])
    for on in (Share(folder=work, number=1, of=SHARES, on=HERE), Finish(folder=work)):
        with pytest.raises(SeqlakeError, match="belongs to another run: source differ") as caught:
            sl.trim(sl.open(tmp_path / "ds"), tmp_path / "out", start=2, on=on)
        assert "a dataset that nobody changes meanwhile" in str(caught.value.hint)
    assert not sl.open(tmp_path / "out").shards()


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_belongs_to_one_release(verb, recorded, tmp_path, monkeypatch) -> None:
    """Another one may have cut the work otherwise, and the same number would be another task."""
    ds, out, work = sl.open(copied(recorded, verb, tmp_path / "ds")), tmp_path / "out", tmp_path / "work"

    def share(number: int) -> None:
        with Share(folder=work, number=number, of=2, on=HERE) as on:
            VERBS[verb](ds, out, on)

    share(0)
    kept = sorted(path for path in work.rglob("*") if path.is_file())
    with monkeypatch.context() as other, pytest.raises(SeqlakeError, match="another run: release differ") as caught:
        other.setattr(sl, "__version__", "0.0.1")
        share(1)
    assert "the same version of seqlake" in str(caught.value.hint)
    assert sorted(path for path in work.rglob("*") if path.is_file()) == kept
    share(1)


def test_files_that_change_between_shares_of_an_index_are_noticed(recorded, tmp_path) -> None:
    place, work = copied(recorded, "index", tmp_path / "ds"), tmp_path / "work"
    with Share(folder=work, number=0, of=2, on=HERE) as share:
        sl.index(sl.open(place), on=share)
    path = place / "data" / "3.parquet"
    path.write_bytes(path.read_bytes())
    with pytest.raises(SeqlakeError, match="belongs to another run: .*files"):
        sl.index(sl.open(place), on=Share(folder=work, number=1, of=2, on=HERE))
    assert sl.open(place).version.id == -1


def receipts(work: Path) -> list[Path]:
    return sorted(path for path in work.glob("pass-*/*/*") if path.name.isdecimal())


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "of another task"])
def test_a_damaged_receipt_is_refused(damage, recorded, tmp_path) -> None:
    ds, work = trimmed(recorded, tmp_path, of=1), tmp_path / "work"
    one, other, *_ = receipts(work)
    data = one.read_bytes()
    changed = {"cut": data[:-3], "flipped": data[:-3] + bytes([data[-3] ^ 1]) + data[-2:], "emptied": b""}
    one.write_bytes(changed.get(damage, other.read_bytes()))
    with pytest.raises(SeqlakeError) as caught:
        sl.trim(ds, tmp_path / "out", start=2, on=Finish(folder=work))
    assert str(one) in str(caught.value)
    assert "Delete it" in str(caught.value.hint)
    assert not sl.open(tmp_path / "out").shards()
    one.unlink()
    with pytest.raises(SeqlakeError, match="1 of [0-9]+ tasks of pass 0 have no receipt"):
        sl.trim(ds, tmp_path / "out", start=2, on=Finish(folder=work))
    trimmed(recorded, tmp_path, of=1)
    assert len(sl.trim(ds, tmp_path / "out", start=2, on=Finish(folder=work)).dataset) == 12


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["run.json", "transaction.agreed", "pass-0/tasks.agreed"])
@pytest.mark.parametrize("data", [b"", b"[]", b"\x80\x04K\x01."])
def test_other_files_of_the_folder_that_are_damaged_are_refused(name, data, recorded, tmp_path) -> None:
    ds, work = trimmed(recorded, tmp_path, of=1), tmp_path / "work"
    (work / name).write_bytes(data)
    for on in (Finish(folder=work), Share(folder=work, number=0, of=1, on=HERE)):
        with pytest.raises(SeqlakeError) as caught:
            sl.trim(ds, tmp_path / "out", start=2, on=on)
        assert str(work) in str(caught.value)
    assert not sl.open(tmp_path / "out").shards()


def test_a_folder_of_something_else_is_refused(recorded, tmp_path) -> None:
    ds = sl.open(copied(recorded, "trim", tmp_path / "ds"))
    (tmp_path / "file").write_text("mine")
    with pytest.raises((SeqlakeError, OSError), match="file"):
        sl.trim(ds, tmp_path / "out", start=2, on=Share(folder=tmp_path / "file", number=0, of=1, on=HERE))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("mine")
    with Share(folder=tmp_path / "work", number=0, of=1, on=HERE) as share:
        sl.trim(ds, tmp_path / "out", start=2, on=share)
    sl.trim(ds, tmp_path / "out", start=2, on=Finish(folder=tmp_path / "work"))
    assert (tmp_path / "work" / "thesis.txt").read_text() == "mine"


def test_a_task_that_fails_keeps_the_others(recorded, tmp_path) -> None:
    """The film of one row is damaged: its share says so, again and again; mended, it goes through."""
    ds = sl.open(copied(recorded, "trim", tmp_path / "ds"))
    film = Path(ds["ep_3_2"]["cam"].location)
    good = film.read_bytes()
    film.write_bytes(good[:200])
    for _ in range(2):
        with pytest.raises(SeqlakeError, match="ep_3_2"):
            trimmed(recorded, tmp_path, of=1)
    kept = receipts(tmp_path / "work")
    assert kept
    film.write_bytes(good)
    trimmed(recorded, tmp_path, of=1)
    assert {*kept} < {*receipts(tmp_path / "work")}
    assert len(sl.trim(ds, tmp_path / "out", start=2, on=Finish(folder=tmp_path / "work")).dataset) == 12


def test_a_place_that_is_taken_is_refused_by_the_first_share(recorded, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    for _ in range(2):
        with pytest.raises(SeqlakeError, match="out"):
            trimmed(recorded, tmp_path)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_shares_beyond_the_tasks_have_nothing_to_do(recorded, tmp_path) -> None:
    ds = sl.open(copied(recorded, "duplicates", tmp_path / "ds"))
    for number in range(8):
        with Share(folder=tmp_path / "work", number=number, of=8, on=HERE) as share:
            sl.duplicates(ds, "vector", threshold=-1, on=share)
    assert len(receipts(tmp_path / "work")) == 6
    assert sl.duplicates(ds, "vector", threshold=-1, on=Finish(folder=tmp_path / "work"))


def test_a_selection_without_rows_has_no_tasks(recorded, tmp_path) -> None:
    ds = sl.open(copied(recorded, "trim", tmp_path / "ds"))
    none = ds.where("false")
    for verb in ("trim", "repack", "statistics", "validate", "duplicates", "outliers"):
        out, work = tmp_path / f"{verb}-out", tmp_path / f"{verb}-work"
        with Share(folder=work, number=0, of=2, on=HERE) as share:
            VERBS[verb](none, out, share)
        given = VERBS[verb](none, out, Finish(folder=work))
        if verb in WRITERS:
            assert len(sl.open(out)) == 0, verb
        elif verb in {"duplicates", "outliers"}:
            assert not given


def test_a_share_waits_for_the_others(recorded, tmp_path, others) -> None:
    """With `wait` a share goes on to the next pass once all have done this one."""
    place, work = copied(recorded, "statistics", tmp_path / "ds"), tmp_path / "work"
    ds = sl.open(place).select("action")
    for number in (1, 2):
        with Share(folder=work, number=number, of=3, on=HERE, wait=0) as share:
            sl.statistics(ds, on=share)
    assert [path.name for path in sorted(work.glob("pass-*"))] == ["pass-0"]
    with Share(folder=work, number=0, of=3, on=HERE, wait=0.1) as share:
        sl.statistics(ds, on=share)
    assert [path.name for path in sorted(work.glob("pass-*"))] == ["pass-0", "pass-1"]
    with pytest.raises(SeqlakeError, match="of pass 1 .*shares 1, 2 of 3"):
        sl.statistics(ds, on=Finish(folder=work))


@pytest.mark.parametrize(("number", "of"), [(-1, 3), (3, 3), (4, 3), (0, 0), (0, -1)])
def test_a_share_is_one_of_them(number, of, tmp_path) -> None:
    with pytest.raises(ValueError, match="share"):
        Share(folder=tmp_path, number=number, of=of)


def test_a_share_ends_its_own_block_alone(tmp_path) -> None:
    with pytest.raises(ZeroDivisionError), Share(folder=tmp_path, number=0, of=1):
        raise ZeroDivisionError
    with pytest.raises(Ended):
        Share(folder=tmp_path / "work", number=0, of=2, on=HERE).run(abs, [1, -2], done=lambda *_: None, tick=int)
    assert inner_of(Share(folder=tmp_path, number=0, of=1, on=HERE)) is HERE


# ---- what receipts are made of
@given(nested(st.fractions(), st.frozensets(st.integers())))
def test_values_come_back(value) -> None:
    again = unpack(pack(value))
    assert again == value
    assert type(again) is type(value)


def test_arrays_and_records_come_back() -> None:
    arrays = [np.arange(6, dtype=">i2").reshape(2, 3).T, np.zeros((0, 3), "f4"), np.array([True]), np.array(["ab"])]
    for array in [*arrays, np.array(["2026-01-02"], "M8[us]"), np.array(3.5)]:
        again = unpack(pack(array))
        assert again.dtype == array.dtype
        assert again.shape == array.shape
        assert np.array_equal(again, array)
    assert isinstance(unpack(pack(np.float32(0.5))), np.float32)
    assert unpack(pack(np.dtype("<f4"))) == np.dtype("<f4")
    known = {"a": (Fraction(1, 3), Decimal("1.50"), date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC), timedelta(1))}
    written = Written(
        location="x", rows=1, nbytes=2, partition={}, statistics={"a": (1, 5, 0)}, ids=b"\0" * 16, index=b""
    )
    assert unpack(pack((written, known))) == (written, known)


@pytest.mark.parametrize("value", [object(), np.array([object()]), lambda: 0, pickle, Path("x"), {1: print}])
def test_nothing_else_is_packed(value) -> None:
    with pytest.raises(TypeError, match="A receipt"):
        pack(value)


def sealed(value: object, sizes: list[int] | None = None, data: bytes = b"", **more: object) -> bytes:
    """What somebody wrote who can make digests."""
    text = json.dumps({"format": 1, "value": value, "sizes": sizes or [], **more}).encode()
    return hashlib.sha256(text + data).hexdigest().encode() + b"\n" + text + b"\n" + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        pickle.dumps(1),
        pack(1)[:-1] + b"2",
        pack(b"abc")[:-1],
        pack(b"abc") + b"d",
        sealed(1, format=2),
        sealed({"$": "os:system", "value": {}}),
        sealed({"$": "seqlake.shares:Share", "value": {"folder": "x"}}),
        sealed({"$": "seqlake.shares:Ended", "value": {}}),
        sealed({"$": "seqlake.gone:Nothing", "value": {}}),
        sealed({"$": "seqlake.protocols:open", "value": {}}),
        sealed({"$": "ndarray", "value": ["|O", [1], 0]}, [8], b"\0" * 8),
        sealed({"$": "ndarray", "value": ["<f8", [1 << 40], 0]}, [8], b"\0" * 8),
        sealed({"$": "ndarray", "value": ["<f8", [1], 3]}, [8], b"\0" * 8),
        sealed({"$": "ndarray", "value": ["<f8", [1], 0]}, [1 << 60], b"\0" * 8),
        sealed({"$": "bytes", "value": -1}, [-8, 16], b"\0" * 8),
        sealed({"$": "date", "value": "yesterday"}),
        sealed({"$": "Fraction", "value": [1, 0]}),
        sealed({"$": "dict", "value": [[[], 1]]}),
        sealed({"value": 1}),
        sealed({"$": "nothing", "value": 1}),
    ],
)
def test_what_is_no_receipt_is_refused(data) -> None:
    with pytest.raises(SeqlakeError, match="is not what a task leaves") as caught:
        unpack(data, path="/work/pass-0/0000/0000001")
    assert "0000001" in str(caught.value)
