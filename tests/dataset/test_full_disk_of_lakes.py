"""A disk that is too small for a change of a lake: nothing of the change is seen or left, and then it goes through."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from .test_full_disk import SMALL, spaces

if TYPE_CHECKING:
    from pathlib import Path

HOMES = {
    "standalone": "{folder}/{name}",
    "delta": "delta:{folder}/{name}",
    "iceberg": "iceberg:{folder}/warehouse/robots.{name}",
    "ducklake": "ducklake:{folder}/meta.duckdb?table={name}",
    "ducklake, sqlite": "ducklake:sqlite:{folder}/meta.sqlite?table={name}",
}
VERBS = {
    "append": "ds.append([row(i) for i in range(20, 26)])",
    "upsert": "ds.upsert([row(i, steps=700) for i in range(3, 8)])",
    "update": "ds.update([{'sequence_id': f'ep_{i}', 'split': 'x' * 40_000} for i in range(6)])",
    "delete": "ds.delete(ids=['ep_1', 'ep_2'])",
    "compact": "sl.compact(ds)",
    "vacuum": "ds.vacuum(older_than=timedelta(0))",
    "add_column": "ds.add_column('note', pa.string())",
    "rename_column": "ds.rename_column('split', 'part', rewrite=True)",
    "rollback": "ds.rollback(ds.versions()[-2])",
    "create": "sl.create(place(home, 'new'), ds.schema)",
    "convert into": "sl.convert(sl.open(sys.argv[2] + '/other'), place(home, 'new'), workers=1, progress=False)",
    "convert from": "sl.convert(ds, place('standalone', 'new'), workers=1, progress=False)",
    "merge into": "sl.merge([sl.open(sys.argv[2] + '/other')], place(home, 'new'))",
}
ROOM = [0, 4, 8, 12, 16, 24, 32, 40, 60, 100, 250, 500, 800]  # thousands of bytes beside what is there
CHILD = """
import json, os, shutil, subprocess, sys, warnings
from datetime import timedelta
import numpy as np, pyarrow as pa
import seqlake as sl
warnings.simplefilter("ignore")
folder, beside, asked = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
log = f"{beside}/log.bin"
with open(log, "wb") as file:
    file.write(os.urandom(100_000))
def place(home, name):
    return asked["homes"][home].format(folder=folder, name=name)
def row(i, steps=600):
    numbers = np.random.default_rng(i).random((steps, 8))
    return {"sequence_id": f"ep_{i}", "action": numbers, "split": ["train", "val"][i % 2], "log": sl.File(log)}
def mount(option):
    subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", folder], check=True)
def room(more):
    about = os.statvfs(folder)
    mount(f"remount,size={(about.f_blocks - about.f_bfree) * about.f_frsize + more}")
def tree():
    found = {os.path.relpath(os.path.join(top, one), folder) for top, _, files in os.walk(folder) for one in files}
    # A database's own, read with it; and what the next collection will read, and remove.
    return {one for one in found if not one.endswith((".wal", "-journal", "_seqlake/expiring.json"))}
def rows(ds):
    return sorted((one["sequence_id"], one["split"], len(one["action"])) for one in ds.to_arrow().to_pylist())
schema = sl.Schema({"action": sl.Trajectory(dim=8, fps=10), "split": pa.string(), "log": sl.ColumnType("mcap")})
sl.create(f"{beside}/other", schema).append([row(i) for i in range(100, 106)])
def one(home, verb, saved, more):
    where = (home, verb, more)
    had, before = tree(), rows(sl.open(place(home, "ds")))
    ds = sl.open(place(home, "ds"))
    room(more)
    given = {**globals(), "ds": ds, "home": home}
    try:
        exec(asked["verbs"][verb], given)
        return False
    except sl.errors.DiskFullError as error:
        assert "No space is left in" in str(error) and "free some" in str(error), (where, error)
        assert error.errno, where
    assert tree() <= had, (where, tree() - had)
    assert rows(sl.open(place(home, "ds"))) == before, where
    room(32 << 20)
    exec(asked["verbs"][verb], {**given, "ds": sl.open(place(home, "ds"))})
    for name in ["ds", *(["new"] if "into" in verb else [])]:
        made = sl.open(place(home, name))
        found = made.validate(depth="rows")
        assert found.ok, (where, found)
    if "into" in verb:
        assert [len(one["action"]) for one in made.to_arrow().to_pylist()] == [600] * 6, where
    return True
full = dict.fromkeys(asked["verbs"], 0)
for home, verbs in asked["tried"].items():
    mount("size=64m")
    ds = sl.create(place(home, "ds"), schema)
    for i in range(3):
        ds.append([row(2 * i), row(2 * i + 1)])
    del ds
    saved = f"{beside}/{home}"
    shutil.copytree(folder, saved)
    subprocess.run(["umount", "--lazy", folder], check=True)
    for verb in verbs:
        for more in asked["room"]:
            mount("size=64m")
            shutil.copytree(saved, folder, dirs_exist_ok=True)
            full[verb] += one(home, verb, saved, more * 1000)
            subprocess.run(["umount", "--lazy", folder], check=True)
print(json.dumps(full))
"""
pytestmark = pytest.mark.skipif(not spaces(), reason="nobody but root may mount a file system here")


def small(tmp_path: Path, tried: dict[str, list[str]], room: list[int]) -> None:
    """Do these in a process of its own; each verb met a full disk at least once."""
    for name in ("disk", "beside"):
        (tmp_path / name).mkdir()
    asked = json.dumps({"homes": HOMES, "verbs": VERBS, "tried": tried, "room": room})
    command = [*SMALL, CHILD, str(tmp_path / "disk"), str(tmp_path / "beside"), asked]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=3600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    full = json.loads(ended.stdout.splitlines()[-1])
    assert all(full[verb] for verbs in tried.values() for verb in verbs), full


def test_it_leaves_nothing_and_goes_through_once_there_is_room(tmp_path: Path) -> None:
    small(tmp_path, {"iceberg": ["rollback"], "delta": ["convert into", "rollback"], "ducklake": ["rollback"]}, [0])


@pytest.mark.soak
@pytest.mark.parametrize("home", HOMES)
def test_no_room_leaves_anything_of_any_verb(tmp_path: Path, home: str) -> None:
    small(tmp_path, {home: list(VERBS)}, ROOM)
