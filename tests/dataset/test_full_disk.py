"""A disk that is too small: what fails leaves nothing, and the same call goes through once there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.compat import l5kit as l5
from seqlake.dataset import reshaping
from seqlake.errors import DatasetExistsError
from seqlake.formats.l5kit.store import AGENTS, DTYPES, FRAMES, SCENES

if TYPE_CHECKING:
    from pathlib import Path

# A process of its own in a name space of its own, where it may mount a small file system.
SMALL = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c"]
VERBS = {
    "convert": "sl.convert(ds, out, workers=1, progress=False)",
    "mds": "sl.convert(ds, out, to='mds', workers=1, progress=False)",
    "jsonl": "sl.convert(ds.select('sequence_id', 'action'), out, to='jsonl', workers=1, progress=False)",
    "repack": "reshaping.repack(ds, out)",
    "subset": "reshaping.subset(ds.where('true'), out)",
    "merge": "sl.merge([ds.where(\"split = 'val'\"), ds.where(\"split = 'train'\")], out)",
    "union": "sl.merge([ds.select('action'), ds], out, union=True, prefixes=['a', 'b'])",
    "resample": "sl.resample(ds, out, fps=20)",
    "split": "reshaping.split(ds.where('true'), out)",
    "trim": "trimming.trim(ds.where('true'), out, start=3)",
    "segment": "trimming.segment(ds.where('true'), out, length=500)",
    "create": "sl.create(out, ds.schema)",
    "chop": "l5.zarr_scenes_chop(store, out, 2)",
    "concat": "l5.zarr_concat([store, store], out)",
    "zarr_split": "l5.zarr_split(store, out, halves)",
    "uncompressed": "l5.uncompressed(store, out)",
}
CHILD = """
import errno, os, subprocess, sys
import seqlake as sl
from seqlake.dataset import reshaping
from seqlake.dataset.reshaping import trimming
from seqlake.compat import l5kit as l5
folder, source, store, call = sys.argv[1:5]
out, failed = f"{folder}/out", 0
ds = sl.open(source)
half = sum(os.path.getsize(os.path.join(top, one)) for top, _, files in os.walk(store) for one in files) / 2**31
halves = [{"name": "a", "split_size_GB": half}, {"name": "b", "split_size_GB": -1}]
def run():
    exec(call)
for size in sys.argv[5:]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        run()
    except (sl.errors.SeqlakeError, OSError) as error:
        assert "No space" in str(error), error
        failed += 1
        left = [os.path.join(top, one) for top, _, files in os.walk(folder) for one in files]
        assert not left, (size, left)
        subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
        run()
    subprocess.run(["umount", "--lazy", folder], check=True)
print(failed)
"""


def spaces() -> bool:
    """Whether this machine lets anybody mount a file system of memory."""
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, check=False, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 2.5 MB, two thirds of it copied-in files."""
    root = tmp_path_factory.mktemp("full")
    (root / "log.bin").write_bytes(os.urandom(150_000))
    schema = {"action": sl.Trajectory(dim=8, fps=10), "split": pa.string(), "log": sl.ColumnType("mcap")}
    ds = sl.create(root / "ds", sl.Schema(schema))
    with ds.writer(rows_per_shard=4) as writer:
        for row in range(10):
            log = sl.File(root / "log.bin")
            action = np.random.default_rng(row).random((600, 8))
            writer.add(f"ep_{row}", action=action, split=["train", "val"][row % 2], log=log)
    return root / "ds"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four scenes of l5kit in about 400 kB that do not compress."""
    scenes, frames, agents = 4, 40, 4000
    arrays = {
        name: np.zeros(rows, DTYPES[name]) for name, rows in ((SCENES, scenes), (FRAMES, frames), (AGENTS, agents))
    }
    arrays[SCENES]["frame_index_interval"] = np.arange(scenes)[:, None] * 10 + [0, 10]
    arrays[FRAMES]["agent_index_interval"] = np.arange(frames)[:, None] * 100 + [0, 100]
    arrays[AGENTS]["centroid"] = np.random.default_rng(1).random((agents, 2))
    arrays[AGENTS]["label_probabilities"] = np.random.default_rng(2).random((agents, 17))
    place = tmp_path_factory.mktemp("store") / "drive.zarr"
    l5.write_store(str(place), arrays, chunks=1000)
    return place


def small(verb: str, sizes: list[str], *given: Path) -> None:
    """Do it on disks of these sizes, and once more where there is room."""
    arguments = [*map(str, given), VERBS[verb], *sizes]
    ended = subprocess.run([*SMALL, CHILD, *arguments], check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert int(ended.stdout) >= 1


@pytest.mark.sampled(every=3)
@pytest.mark.skipif(not spaces(), reason="nobody but root may mount a file system here")
@pytest.mark.parametrize("verb", ["convert", "mds", "split", "trim", "concat", "zarr_split"])
def test_what_fails_leaves_nothing_and_goes_through_once_there_is_room(
    tmp_path: Path, source: Path, store: Path, verb: str
) -> None:
    small(verb, ["4k", "1000k"] if verb == "split" else ["4k", "200k"], tmp_path, source, store)


@pytest.mark.soak
@pytest.mark.parametrize("verb", VERBS)
def test_no_size_of_a_disk_leaves_anything(tmp_path: Path, source: Path, store: Path, verb: str) -> None:
    small(verb, ["4k", "8k", "12k", "32k", "100k", "200k", "400k", "700k", "1500k"], tmp_path, source, store)


def test_folders_that_a_killed_run_left_are_no_obstacle(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out" / "_seqlake" / "versions").mkdir(parents=True)
    (tmp_path / "out" / "part-00000" / "_writing").mkdir(parents=True)
    sl.convert(sl.open(source), tmp_path / "out", workers=1, progress=False)
    assert len(sl.open(tmp_path / "out")) == 10
    for make in ("file", "link"):
        place = tmp_path / make
        (place / "inner").mkdir(parents=True)
        if make == "file":
            (place / "inner" / "a").write_bytes(b"")
        else:
            (place / "inner" / "a").symlink_to(tmp_path, target_is_directory=True)
        with pytest.raises(DatasetExistsError, match="inner"):
            sl.convert(sl.open(source), place, workers=1, progress=False)


def test_a_split_that_cannot_be_finished_leaves_what_was_there_before(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out" / "val").mkdir(parents=True)
    (tmp_path / "out" / "val" / "mine").write_bytes(b"mine")
    with pytest.raises(DatasetExistsError):
        reshaping.split(sl.open(source).where("true"), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["val", "mine"]


def test_a_full_disk_does_not_deny_what_was_committed_before(tmp_path: Path, source: Path) -> None:
    # A limit on the size of files stands for the disk: the large shard fails, the small ones before it went through.
    child = """
import errno, resource, sys
import numpy as np, seqlake as sl
ds = sl.create(sys.argv[1], sl.Schema({"action": sl.Trajectory(dim=8, fps=10)}))
try:
    with ds.writer(commit_every=2) as writer:
        for row in range(4):
            writer.add(f"ep_{row}", action=np.ones((10, 8)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        writer.add("large", action=np.random.default_rng(0).random((100_000, 8)))
except OSError as error:
    assert error.errno == errno.EFBIG, error
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", child, str(tmp_path / "ds")], check=False, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "othing was committed" not in ended.stdout
    ds = sl.open(tmp_path / "ds")
    assert [one.id for one in ds] == ["ep_0", "ep_1", "ep_2", "ep_3"]
    assert ds.validate(depth="rows").ok
