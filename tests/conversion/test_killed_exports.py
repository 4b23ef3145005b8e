"""Exports into every format, killed at any change of the disk and at any time: nothing half is seen, and they go on."""

from __future__ import annotations

import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.counting import many, tell
from tests.dying import Zygote, built
from tests.formats.l5kit import conftest as drives
from tests.formats.lerobot import by_hand
from tests.media.clips import encode

import seqlake as sl
from seqlake.errors import SeqlakeError
from seqlake.media import encode_image

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs libc and a compiler")

ROWS = 5
SCHEMA = {
    "x": sl.Trajectory(2, dtype="float32", fps=30),
    "cam": sl.Image(frames="bytes", format="png"),
    "film": sl.Video(fps=30),
    "task": pa.string(),
    "split": pa.string(),
}
FORMATS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    # The source, the file that makes the folder a dataset, without one all files come at once; options.
    "huggingface": ("ours", None, {}),
    "webdataset": ("ours", None, {}),
    "mcap": ("ours", None, {}),
    "rerun": ("ours", None, {}),
    "mds": ("ours", "index.json", {}),
    "rlds": ("ours", "dataset_info.json", {}),
    "zarr_replay": ("ours", ".zgroup", {}),
    "lerobot": ("lerobot", "meta/info.json", {"bytes_per_part": 6000}),
    "l5kit": ("l5kit", ".zgroup", {"chunks": 40}),
}
NEEDS = {"mcap": "mcap", "rerun": "rerun", "zarr_replay": "numcodecs", "l5kit": "numcodecs", "lerobot": "av"}
EXPORTING = Path(__file__).with_name("exporting.py")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("sources")
    ds, rng = sl.create(top / "ours", SCHEMA), np.random.default_rng(3)
    film = top / "film.mp4"
    film.write_bytes(encode(times=range(4)))
    for number in range(ROWS):
        cam = [encode_image(rng.integers(0, 256, (6, 8, 3)).astype("u1")) for _ in range(4)]
        row = {"cam": cam, "film": sl.File(film), "task": f"t{number}", "split": ("train", "test")[number % 2]}
        ds.append([{"sequence_id": f"ep{number}", "x": np.full((4, 2), number, "f4"), **row}])
    by_hand.write(top / "lerobot", by_hand.four(), "v3.0")
    driven = drives.write(top / "driven", drives.drives(scenes=3, frames=6, agents=3), codec=drives.CODECS["zlib"])
    sl.convert(driven, top / "l5kit", progress=False, workers=1, rows_per_shard=1)
    return {name: top / name for name in ("ours", "lerobot", "l5kit")}


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Any:
    process = Zygote(EXPORTING, library=built(tmp_path_factory.mktemp("dying")))
    yield process
    process.close()


def contents(folder: Path) -> dict[str, bytes]:
    """All files but those that are being written."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if (folder / path).is_file())
    return {path.as_posix(): (folder / path).read_bytes() for path in paths if not path.parts[0].startswith(".seqlake")}


class Exports:
    """Of one format."""

    def __init__(self, to: str, sources: dict[str, Path], zygote: Zygote, folder: Path) -> None:
        self.to, self.folder, self._zygote = to, folder, zygote
        source, self.gate, options = FORMATS[to]
        self._said = {"source": str(sources[source]), "to": to, "options": {"bytes_per_part": 1, **options}}
        began = time.monotonic()
        answer = self.run("whole")
        self.seconds, self.steps = time.monotonic() - began, answer["steps"]
        self.whole = contents(folder / "whole/out")
        self.rows = self.scanned(folder / "whole/out")

    def run(self, name: str, **how: Any) -> dict[str, Any]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        return self._zygote.run(home=str(home), **self._said, **how)

    def scanned(self, out: Path) -> Any:
        """The rows as we read them; None where there is no dataset."""
        try:
            return None if self.to == "rerun" else sl.scan(out).to_arrow()
        except SeqlakeError:
            return None

    def same(self, there: dict[str, bytes]) -> bool:
        """Whether these are all files; Rerun's have numbers of their own each time."""
        return there.keys() == self.whole.keys() if self.to == "rerun" else there == self.whole

    def check(self, name: str) -> None:
        """Nothing, or all of it, as other readers see it and as we do."""
        there = contents(self.folder / name / "out")
        if self.gate is None:
            assert not there or self.same(there), sorted(there)
        else:
            assert self.gate not in there or self.same(there), sorted(there)
        rows = self.scanned(self.folder / name / "out")
        assert rows is None or rows.equals(self.rows)

    def finish(self, name: str) -> None:
        """The same call ends in the same, and leaves nothing besides."""
        home = self.folder / name
        assert self.run(name)["said"] in {"done", "there"}
        assert self.same(contents(home / "out"))
        left = [path for path in home.rglob("*") if ".seqlake" in path.name or path.parent.name == "conversions"]
        assert left == []


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("kills", [1, pytest.param(40, marks=pytest.mark.soak)])
@pytest.mark.parametrize("to", FORMATS)
def test_killed_anywhere_nothing_half_is_seen_and_it_goes_on(
    to: str, kills: int, sources: dict[str, Path], zygote: Zygote, tmp_path: Path
) -> None:
    pytest.importorskip(NEEDS.get(to, "seqlake"))
    exports = Exports(to, sources, zygote, tmp_path)
    assert len(exports.whole) > 2
    assert exports.rows is not None or to == "rerun"
    rng, killed = random.Random(f"{to} {kills}"), 0
    soak = kills > 1
    # While the parts are removed, what was made is there already: the end is looked at more closely.
    late = range(8) if soak else (0,)
    moments: list[dict[str, Any]] = [{"at": exports.steps - 1 - 3 * number} for number in late]
    moments += [{"at": rng.randrange(exports.steps)} for _ in range(max(1, many(kills) - len(moments)))]
    moments += [{"after": rng.uniform(0, exports.seconds)} for _ in range(many(12) if soak else 1)]
    for number, how in enumerate(moments):
        name = f"killed{number}"
        killed += exports.run(name, **how)["killed"]
        try:
            exports.check(name)
            if number % 3 == 1:  # killed again while it goes on
                exports.run(name, at=rng.randrange(exports.steps))
                exports.check(name)
            exports.finish(name)
        except AssertionError as error:
            raise AssertionError(f"killed {how} of {exports.steps} steps: {error}") from error
        shutil.rmtree(tmp_path / name)
    tell(killed=f"export to {to}", kills=killed, steps=exports.steps)
    print(f"{to}: {killed} kills, {exports.steps} steps")
    assert killed >= max(1, many(kills) - 2)  # the last steps of one run may be beyond another that made fewer folders


def test_tables_of_an_export_that_is_not_finished_are_no_dataset(tmp_path: Path) -> None:
    """The data files of LeRobot have their names before `meta/info.json`: plain Parquet, for who does not look."""
    import pyarrow.parquet as pq

    (tmp_path / "out/data/chunk-000").mkdir(parents=True)
    pq.write_table(pa.table({"action": [1.0]}), tmp_path / "out/data/chunk-000/file-000.parquet")
    assert len(sl.scan(tmp_path / "out")) == 1
    (tmp_path / "out/.seqlake_parts/00000").mkdir(parents=True)
    (tmp_path / "out/.seqlake_parts/00000/steps.parquet").write_bytes(b"")
    for options in ({}, {"format": "huggingface"}):
        with pytest.raises(SeqlakeError, match="was interrupted"):
            sl.scan(tmp_path / "out", **options)


def test_a_place_where_no_folder_can_be_replaced_gets_its_files_one_by_one(tmp_path: Path) -> None:
    """A file of somebody else's that comes while parts are written; a folder above that cannot be written."""
    from seqlake.files.appearing import STAGED, appear
    from seqlake.files.stores import open_store

    for number, case in enumerate(("a file beside", "a folder above")):
        out = tmp_path / str(number) / "out"
        store = open_store(str(out))
        for name in ("a", "b"):
            store.put(f"{STAGED}/0/{name}", name.encode())
        if case == "a file beside":
            (out / "README").write_text("mine")
        else:
            (out.parent / ".out.seqlake_whole").write_text("in the way")
        names = {f"{STAGED}/0/{name}": f"{name}.tar" for name in ("a", "b")}
        appear(store, str(out), names)
        assert {path.name: path.read_text() for path in out.iterdir() if path.is_file()} == {
            "a.tar": "a", "b.tar": "b", **({"README": "mine"} if number == 0 else {})
        }  # fmt: skip
        if number == 0:  # killed between the two files
            between = out.parent / ".out.seqlake_whole"
            between.mkdir()
            (out / "b.tar").rename(between / "b.tar")
        appear(store, str(out), names)
        assert sorted(path.name for path in out.iterdir() if path.is_file()) == sorted(
            ["a.tar", "b.tar", *(["README"] if number == 0 else [])]
        )
