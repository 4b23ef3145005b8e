"""Datasets that released versions wrote are read as they were meant, cell by cell, for ever.

`tests/data/stored/make.py` made them, each with the release that it is named after. None is ever made again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.statistics import scan

STORED = Path(__file__).parents[1] / "data" / "stored"
RELEASES = sorted(path.name for path in STORED.iterdir() if path.is_dir() and path.name[0].isdigit())
PROMISED = {"0.1.0"}


def told(release: str) -> dict[str, Any]:
    return json.loads((STORED / f"{release}.json").read_text())


def rows_of(document: dict[str, Any], version: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {key: document["rows"][number] for key, number in version["rows"].items()}


def every_version() -> list[tuple[str, int]]:
    return [(release, version["id"]) for release in RELEASES for version in told(release)["versions"]]


def tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def stored(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a release's dataset, made by plain `cp`; the user's cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "ds"
    shutil.copytree(STORED / request.param, root)
    return root


def planes(view: Any) -> str:
    """The digest of the frames as FFmpeg decodes them, every one found through our packet index."""
    found = hashlib.sha256()
    with view._held.use(view._open) as decoder:
        for _, frame in sorted(decoder.planes(np.arange(len(decoder))), key=lambda pair: pair[0]):
            found.update(frame.to_ndarray().tobytes())
    return found.hexdigest()


def check_media(view: Any, expected: Any) -> None:
    assert view.reference == expected["reference"]
    if "samples" in expected:
        samples = view[:]
        assert samples.shape == (expected["samples"], 1)
        whole = np.rint(samples * 32768).astype("<i2")
        assert hashlib.sha256(whole.tobytes()).hexdigest() == expected["sha256"]
        return
    assert len(view) == expected["frames"]
    zero = Fraction(expected["seconds"][0])
    assert [int(pts - view.pts[0]) * view.time_base for pts in view.pts] == [
        Fraction(one) - zero for one in expected["seconds"]
    ]
    assert planes(view) == expected["sha256"]
    width, height = expected["size"]
    assert view[0].shape == (height, width, 3)


def check_cell(found: Any, expected: Any, name: str) -> None:
    """A cell as it is read against the JSON of what was written."""
    if expected is None or found is None:
        assert (found, expected) == (None, None), name
    elif isinstance(found, np.ndarray):
        assert found.astype(np.float64).ravel().tolist() == np.array(expected, np.float64).ravel().tolist(), name
        assert len(found) == len(expected), name
    elif isinstance(expected, dict):
        check_media(found, expected)
    elif name == "thumb":
        assert [hashlib.sha256(cell).hexdigest() for cell in found.cells] == expected
    elif isinstance(found, datetime):
        assert found.isoformat() == expected
    elif isinstance(found, bytes):
        assert base64.b64encode(found).decode() == expected
    elif hasattr(found, "reference"):
        assert found.reference == expected
    else:
        assert found == expected, name
        assert type(found) is type(expected), name


def test_every_release_has_its_dataset() -> None:
    assert set(RELEASES) >= PROMISED, "a stored dataset is never removed"
    assert all(
        sum(path.stat().st_size for path in (STORED / one).rglob("*") if path.is_file()) < 200_000 for one in RELEASES
    )


@pytest.mark.parametrize(("stored", "version"), every_version(), indirect=["stored"])
def test_every_cell_of_every_version(stored: Path, version: int, request) -> None:
    document = told(request.node.callspec.params["stored"])
    [expected] = [one for one in document["versions"] if one["id"] == version]
    before = tree(stored)
    ds = sl.open(stored, version=version)
    assert {name: str(ds.schema[name].arrow) for name in ds.schema.names} == expected["columns"]
    rows = rows_of(document, expected)
    assert {view.id for view in ds} == set(rows)
    assert len(ds) == len(rows)
    for key, cells in rows.items():
        view = ds.sequence(key)
        for name in ds.schema.names:
            if name != "sequence_id":
                check_cell(view[name], cells.get(name), name)
    assert tree(stored) == before, "reading changes no file"


@pytest.mark.parametrize("stored", RELEASES, indirect=True)
def test_the_log_is_what_was_done(stored: Path, request) -> None:
    document = told(request.node.callspec.params["stored"])
    ds = sl.open(stored)
    found = [(version.id, version.operation, version.rows) for version in ds.versions()]
    expected = [(one["id"], one["operation"], len(one["rows"])) for one in document["versions"]]
    assert found[: len(expected)] == expected
    assert ds.schema.metadata.extra["made_for"] == {"robot": "arm", "gripper": None}
    assert ds.schema["log"].type.to_json() == {"type": "mcap", "topics": ["/joints"]}
    report = ds.validate(depth="decode")
    assert report.ok, list(report)


@pytest.mark.parametrize("stored", RELEASES, indirect=True)
def test_the_fast_paths_still_are(stored: Path) -> None:
    """Offset indexes, packet indexes, statistics and id hashes of the release are used, not made again."""
    ds = sl.open(stored)
    flat = []
    for shard in ds.shards():
        reader = shard.open()
        flat.append(reader.flat("action") is not None)
        reader.close()
    assert any(flat), "windows of the training layout are read without decoding"
    assert all(ds.source.kept_packets(view["cam"].reference) for view in ds if view["cam"] is not None), (
        "packet indexes are kept with the version"
    )
    assert ds.sequence("ep_a")["task"] == "pick"
    kept = scan._read(ds)
    assert set(kept) == {"action", "cam"}
    actions = np.concatenate([view["action"] for view in ds if view["action"] is not None])
    assert np.abs(kept["action"].mean - actions.mean(axis=0, dtype=np.float64)).max() < 1e-12


@pytest.mark.parametrize("stored", RELEASES, indirect=True)
def test_training_reads_the_same_windows(stored: Path) -> None:
    ds = sl.open(stored)
    rows = {view.id: view["action"] for view in ds if view["action"] is not None}
    window = sl.Window({"action": range(-1, 2), "raw": range(1)})
    seen = 0
    for batch in sl.Loader(ds.where("action IS NOT NULL"), window=window, batch_size=4, seed=1).tail("pad"):
        for k in np.flatnonzero(batch["valid"]):
            whole, start = rows[batch["sequence_id"][k]], int(batch["start"][k])
            for place, step in enumerate(range(start - 1, start + 2)):
                inside = 0 <= step < len(whole)
                assert batch["action_mask"][k, place] == inside
                assert batch["action"][k, place].tolist() == (whole[step].tolist() if inside else [0, 0, 0])
            seen += 1
    assert seen == sum(map(len, rows.values()))


@pytest.mark.parametrize("stored", RELEASES, indirect=True)
def test_it_is_written_on(stored: Path, request) -> None:
    """A new commit goes on from the old log, and the old versions stay what they were."""
    document = told(request.node.callspec.params["stored"])
    ds = sl.open(stored)
    last = ds.version
    ds.append([{"sequence_id": "new", "task": "later", "action": np.ones((2, 3), np.float32)}])
    assert ds.version.id == last.id + 1
    assert ds["new"]["action"].tolist() == [[1, 1, 1], [1, 1, 1]]
    with pytest.raises(sl.errors.DuplicateSequenceError):
        ds.append([{"sequence_id": "ep_a"}])
    for one in document["versions"]:
        assert {view.id for view in sl.open(stored, version=one["id"])} == set(one["rows"])


# ---- what docs/formats.md promises of what is unknown, missing or newer


NEWEST = RELEASES[-1:]


def sealed(document: dict[str, Any]) -> bytes:
    """The bytes of a record, as docs/reference/commits.md describes them."""
    body = json.dumps(document, ensure_ascii=False)[:-1].encode()
    return body + f', "digest": "{hashlib.sha256(body).hexdigest()}"}}\n'.encode()


@contextmanager
def changed(path: Path, data: bytes) -> Iterator[None]:
    whole = path.read_bytes()
    path.write_bytes(data)
    yield
    path.write_bytes(whole)


def newest_record(root: Path) -> Path:
    return max((root / "_seqlake" / "versions").iterdir())


@pytest.mark.parametrize("stored", NEWEST, indirect=True)
def test_unknown_keys_are_skipped_and_a_higher_number_is_refused(stored: Path) -> None:
    if json.loads(newest_record(stored).read_text())["format"] == 1:  # knew no digests; nothing else wrote such records
        rotten = json.loads(newest_record(stored).read_text()) | {"future": {"a": [1]}}
        with changed(newest_record(stored), json.dumps(rotten).encode()), pytest.raises(sl.errors.DamagedTableError):
            sl.open(stored)
        sl.open(stored).append([{"sequence_id": "new"}])
    record = newest_record(stored)
    document = {key: value for key, value in json.loads(record.read_text()).items() if key != "digest"}
    with changed(record, sealed({**document, "future": {"a": [1]}})):
        assert len(sl.open(stored)) == document["rows"]
    for later in ({"format": document["format"] + 1}, {"requires": ["the future"]}):
        with changed(record, sealed(document | later)):
            before = tree(stored)
            with pytest.raises(sl.errors.UnsupportedVersionError, match="Update seqlake"):
                sl.open(stored)
            assert tree(stored) == before


def relabelled(packets: bytes) -> bytes:
    """A packet index of a version to come."""
    table = pa.ipc.open_stream(packets).read_all()
    head = json.loads(table.schema.metadata[b"seqlake.packets"])
    sink = pa.BufferOutputStream()
    made = table.replace_schema_metadata({"seqlake.packets": json.dumps({**head, "version": head["version"] + 1})})
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    return bytes(sink.getvalue())


def later_packets(root: Path) -> None:
    for path in (root / "_seqlake" / "media").iterdir():
        table = pa.ipc.open_file(path.read_bytes()).read_all()
        later = pa.array([relabelled(one) for one in table["packets"].to_pylist()], pa.binary())
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table.set_column(2, table.schema.field(2), later))


def later_statistics(root: Path) -> None:
    for path in (root / "_seqlake" / "derived").iterdir():
        path.write_text(json.dumps({"format": 2}))


LOST = {
    "index files": lambda root: shutil.rmtree(root / "_seqlake" / "index"),
    "checkpoints": lambda root: shutil.rmtree(root / "_seqlake" / "checkpoints"),
    "packet indexes": lambda root: shutil.rmtree(root / "_seqlake" / "media"),
    "statistics": lambda root: shutil.rmtree(root / "_seqlake" / "derived"),
    "later packet indexes": later_packets,
    "later statistics": later_statistics,
}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("stored", NEWEST, indirect=True)
def test_what_can_be_made_again_may_be_lost(stored: Path, lost: str, request) -> None:
    whole = sl.statistics(sl.open(stored), ["action", "cam"])
    LOST[lost](stored)
    document = told(request.node.callspec.params["stored"])
    ds = sl.open(stored, version=document["versions"][-1]["id"])
    for key, cells in rows_of(document, document["versions"][-1]).items():
        for name in ds.schema.names:
            if name != "sequence_id":
                check_cell(ds.sequence(key)[name], cells.get(name), name)
    assert sl.statistics(sl.open(stored), ["action", "cam"]) == whole
