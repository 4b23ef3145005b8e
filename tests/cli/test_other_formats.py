"""Every command on datasets of other formats: it works, or one line says what to do; what is there stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.cli import bench
from seqlake.errors import SchemaMismatchError

from ..formats.rlds.conftest import arm_folder  # noqa: TID252 - one tool for several rooms

if TYPE_CHECKING:
    from collections.abc import Callable

l5 = pytest.importorskip("seqlake.compat.l5kit")
pytest.importorskip("numcodecs")

SEQUENCES = {"rlds": "arm-train-00000-00000", "l5": "l5-00000"}  # the id of one
SAMPLES = ("mds", "csv", "jsonl")
CONVERT_FIRST = {  # these change a dataset, or are about its versions
    "adopt": [], "compact": [], "delete": ["--where", "true"], "diff": [], "drop": ["{signal}"], "fold": [],
    "index": [], "init": [], "label": ["good", "1"], "label --sql": ["good", "--sql", "1"],
    "label --csv": ["--csv", "{csv}"], "relocate --inline": ["--inline", "{signal}"],
    "relocate --extract": ["--extract", "{signal}"], "relocate": ["--from", "a", "--to", "b"],
    "rename": ["{signal}", "x"], "rollback": ["1"], "schema --set": ["--set", "{signal}="],
    "schema --set-metadata": ["--set-metadata", "license=MIT"], "set": ["{id}", "{signal}=1"], "split": [],
    "split OUT": ["{out}", "--by", "{signal}"], "tag": [], "tag NAME": ["best"], "vacuum": [], "versions": [],
}  # fmt: skip
WORK = {
    "ls": [], "ls --where": ["--where", "{signal} IS NOT NULL"], "info": [], "schema": [], "files": [], "validate": [],
    "sql": ["SELECT count(*) FROM dataset"], "stats": [], "show --sheet": ["--sheet", "{out}.png"],
    "convert": ["{out}"], "diff": ["{source}"], "merge": ["{source}", "{out}", "--prefix", "a", "--prefix", "b"],
    "merge --union": ["{own}", "{out}", "--union", "--prefix", "a/", "--prefix", "b/"],
    "repack": ["{out}"], "subset": ["{out}", "--where", "true"],
    "show": ["{id}"], "show --png": ["{id}", "--png", "{out}.png"],
}  # fmt: skip
OF_SEQUENCES = {"convert", "diff", "merge", "merge --union", "repack", "subset", "show", "show --png"}


def drives(folder: Path) -> None:
    """Two scenes of 20 frames with two cars, and never a traffic light."""
    frames, scenes = np.zeros(40, l5.FRAME_DTYPE), np.zeros(2, l5.SCENE_DTYPE)
    frames["timestamp"] = np.arange(40) * 100_000_000
    frames["agent_index_interval"] = np.stack([np.arange(40) * 2, np.arange(40) * 2 + 2], axis=1)
    frames["ego_rotation"] = np.eye(3)
    scenes["frame_index_interval"] = [[0, 20], [20, 40]]
    agents = np.zeros(80, l5.AGENT_DTYPE)
    agents["track_id"] = np.arange(80) % 2 + 1
    agents["extent"] = 1
    faces = np.zeros(0, l5.FACE_DTYPE)
    l5.write_store(str(folder), {"scenes": scenes, "frames": frames, "agents": agents, "traffic_light_faces": faces})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of each format, one of ours, and a table of labels."""
    home = tmp_path_factory.mktemp("formats")
    drives(home / "l5")
    arm = arm_folder()
    del arm.steps["observation"]["featuresDict"]["features"]["cam"]  # whose bytes are no pictures
    arm.write(home / "rlds")
    options = {"mds": {"format": "mds"}, "csv": {"format": "xsv", "separator": ","}, "jsonl": {"format": "jsonl"}}
    for name in SAMPLES:
        with sl.create(home / name, {"e": "str", "n": "int"}, **options[name]) as writer:
            for number in range(3):
                writer.write({"e": f"a{number}", "n": number})
    ds = sl.create(home / "own", {"wrist": sl.Trajectory(dim=2)})
    ds.append([{"sequence_id": "a", "wrist": np.zeros((4, 2))}])
    (home / "labels.csv").write_text("sequence_id,grade\na,1\n")
    return home


@pytest.fixture
def on(home: Path, tmp_path: Path, run: Any) -> Callable[[str, str, list[str]], Any]:
    """Run a command on one of them; nothing there may change."""

    def files() -> dict[str, tuple[int, bytes]]:
        paths = [path for path in home.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    def call(name: str, verb: str, more: list[str]) -> Any:
        values = {
            "out": tmp_path / "out", "source": home / name, "own": home / "own", "csv": home / "labels.csv",
            "id": SEQUENCES.get(name, "a0"),
            "signal": {"l5": "ego_translation", "rlds": "action"}.get(name, "n"),
        }  # fmt: skip
        before = files()
        done = run(verb.partition(" ")[0], home / name, *(one.format(**values) for one in more))
        assert files() == before
        return done

    return call


@pytest.mark.parametrize("name", [*SEQUENCES, *SAMPLES])
def test_what_changes_a_dataset_says_to_convert_first(name: str, on: Any, home: Path) -> None:
    kind = {"csv": "xsv", "l5": "l5kit"}.get(name, name)
    place = home / name
    for verb, more in CONVERT_FIRST.items():
        done = on(name, verb, more)
        assert (done.code, done.out) == (1, ""), verb
        assert done.err.strip() == (
            f"seqlake: error: No Mixtrain dataset is at {place}: it is a dataset of the format {kind!r}. Read it with "
            f"sl.scan('{place}'), or convert it first: sl.convert('{place}', OUT), `seqlake convert`."
        ), verb


@pytest.mark.sampled
@pytest.mark.parametrize("verb", WORK)
@pytest.mark.parametrize("name", [*SEQUENCES, *SAMPLES])
def test_what_reads_works_or_says_that_samples_become_sequences(name: str, verb: str, on: Any) -> None:
    done = on(name, verb, WORK[verb])
    if name in SEQUENCES or verb not in OF_SEQUENCES:
        assert done.code == 0, done.err
        assert done.out or verb == "validate"
        return
    assert done.code in {1, 2}
    assert done.out == ""
    [line] = [line for line in done.err.splitlines() if "rror: " in line]
    assert "convert" in line or "sequence_id=COLUMN" in line


@pytest.mark.parametrize(("verb", "more"), [("trim", ["--start", "1"]), ("segment", ["--length", "2"])])
def test_sequences_are_cut_where_a_clock_relates_their_columns(verb: str, more: list[str], on: Any) -> None:
    assert on("rlds", verb, ["{out}-rlds", *more]).code == 0
    for name, said in {"l5": "found num_agents, num_tl_faces", "mds": "sl.convert"}.items():
        done = on(name, verb, ["{out}", *more])
        assert (done.code, done.out) == (1, "")
        assert said in done.err
        assert len(done.err.splitlines()) == 1


def test_a_rate_that_nobody_says_is_declared_after_the_conversion(home: Path, tmp_path: Path) -> None:
    """The advice is a line of code, which does it; of a dataset of ours it needs no conversion."""
    verbs = {
        "trim": lambda rows, out: sl.trim(rows, out, seconds=(0, 0.1)).dataset,
        "segment": lambda rows, out: sl.segment(rows, out, seconds=[0.1]).dataset,
        "resample": lambda rows, out: sl.resample(rows, out, fps=10),
    }
    for name in SEQUENCES:
        rows = sl.scan(home / name)
        counts = {"num_agents", "num_tl_faces"}  # rows that have them are cut nowhere
        rows = rows.select(*[column for column in rows.schema if column not in counts])
        said = set()
        for verb, do in verbs.items():
            with pytest.raises(SchemaMismatchError, match="convert it and declare it there") as refused:
                do(rows, tmp_path / "none")
            said.add(str(refused.value).partition("there: ")[2].rstrip("."))
            assert not (tmp_path / "none").exists(), verb
        [line] = said
        out = tmp_path / f"{name}-converted"
        eval(line, {"sl": sl, "source": rows, "out": out})
        assert all(len(do(sl.open(out), tmp_path / f"{name}-{verb}")) for verb, do in verbs.items())
    own = sl.open(home / "own")
    for do in verbs.values():
        for rows in (own, own.where("true")):
            with pytest.raises(
                SchemaMismatchError, match=r"declare it, as in ds\.set_type\('wrist', sl\.Trajectory\(dim=2"
            ):
                do(rows, tmp_path / "none")


def test_an_rlds_dataset_with_damaged_pictures_says_which(tmp_path: Path, run: Any) -> None:
    arm = arm_folder()
    arm.write(tmp_path / "rlds")
    done = run("stats", tmp_path / "rlds")
    assert done.code == 1
    assert "Column 'cam' of 'arm-train-0000" in done.err
    assert "picture 0" in done.err


def test_verbs_of_a_dataset_on_a_selection_say_what_has_them(home: Path) -> None:
    scanned = sl.scan(home / "rlds")
    verbs = [name for name in dir(sl.Dataset) if not name.startswith("_") and not hasattr(sl.Selection, name)]
    assert {"add_column", "delete", "tag", "fold", "convert_units", "set_type"} < set(verbs)
    for verb in verbs:
        with pytest.raises(AttributeError, match=rf"sl\.open\(location\)\.{verb}; .* converted first"):
            getattr(scanned, verb)
        assert not hasattr(scanned, verb)
    with pytest.raises(AttributeError, match="has no attribute 'deleet'"):
        _ = scanned.deleet


def test_signals_of_other_formats_are_streamed_by_bench(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_memcpy", lambda: 10**9)
    short = ["--seconds", "0.1", "--window", "2", "--batch-size", "2", "--json"]
    assert "timestamp" in on("l5", "bench", short).json["columns"]
    done = on("mds", "bench", short)
    assert (done.code, done.out) == (2, "")
    assert "convert" in done.err
