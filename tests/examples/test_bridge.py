"""`examples/bridge.py` on the real set, against a parser that shares nothing with ours."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import seqlake as sl

PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "examples" / "bridge.py"
REAL = PROJECT.parent / "shared" / "data" / "bridge_rlds" / "1.0.0"

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real set is not at {REAL}")

ORDER = """
import importlib.util, json, sys
import seqlake as sl
spec = importlib.util.spec_from_file_location("bridge", sys.argv[1])
bridge = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bridge)
print(json.dumps([bridge.windows(sl.open(sys.argv[2]), epoch=epoch) for epoch in (0, 1)]))
"""


class Wire:
    """Protobuf by a cursor: just what a tf.train.Example needs."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def varint(self):
        shift, value = 0, 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return value

    def fields(self):
        while self.at < len(self.data):
            tag = self.varint()
            assert tag & 7 == 2, "every field of these records is length-delimited"
            size = self.varint()
            self.at += size
            yield tag >> 3, self.data[self.at - size : self.at]


def truth():
    """The episodes as {key: bytes list, float array or int list}."""
    data = (REAL / "bridge_dataset-train.tfrecord-00000-of-00001").read_bytes()
    episodes, at = [], 0
    while at < len(data):
        (size,) = struct.unpack("<Q", data[at : at + 8])
        [(_, features)] = Wire(data[at + 12 : at + 12 + size]).fields()
        at += size + 16
        episode = {}
        for _, entry in Wire(features).fields():
            (_, key), (_, feature) = Wire(entry).fields()
            [(kind, values)] = Wire(feature).fields()
            found = [value for _, value in Wire(values).fields()]
            if kind == 2:
                found = np.frombuffer(b"".join(found), np.float32)
            if kind == 3:
                cursor, found = Wire(b"".join(found)), []
                while cursor.at < len(cursor.data):
                    found.append(cursor.varint())
            episode[key.decode()] = found
        episodes.append(episode)
    return episodes


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("bridge") / "dataset"
    command = [sys.executable, str(EXAMPLE), str(REAL), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_it_says_what_it_did(ran):
    _, said = ran
    assert "25 sequences" in said
    assert "put carrot on plate" in said
    assert "validate: 0 errors" in said
    assert "epoch 1: 250 windows" in said
    assert "0 twice" in said


def test_the_dataset_equals_the_source(ran):
    dataset, episodes = sl.open(ran[0]), truth()
    assert len(dataset) == len(episodes) == 25
    assert dataset.schema["language_instruction"].category == "scalar"
    assert dataset.schema["language_embedding"].category == "vector"
    for row, episode in enumerate(episodes):
        sequence = dataset[row]
        for name, key in (("action", "steps/action"), ("state", "steps/observation/state")):
            assert sequence[name].shape == (10, 7)
            assert sequence[name].dtype == np.float32
            assert sequence[name].tobytes() == episode[key].tobytes()
        assert [sequence["language_instruction"].encode()] * 10 == episode["steps/language_instruction"]
        vector = np.asarray(sequence["language_embedding"], np.float32)
        assert np.tile(vector, 10).tobytes() == episode["steps/language_embedding"].tobytes()


def test_the_files_hold_the_same_jpeg_bytes(ran):
    cells = [pq.read_table(path) for path in sorted((ran[0] / "data").glob("*.parquet"))]
    [table] = cells
    for camera in range(4):
        for cell, episode in zip(table[f"image_{camera}"].to_pylist(), truth(), strict=True):
            assert cell == episode[f"steps/observation/image_{camera}"]
            assert all(picture.startswith(b"\xff\xd8") for picture in cell)


def test_sql_and_validate_answer(ran):
    dataset = sl.open(ran[0])
    query = "SELECT count(*), sum(len(action)), min(list_extract(state, 1)[1]) FROM dataset WHERE len(action) > 9"
    [(rows, steps, least)] = dataset.sql(query).fetchall()
    assert (rows, steps) == (25, 250)
    assert least == min(float(episode["steps/observation/state"][0]) for episode in truth())
    report = dataset.validate(depth="rows")
    assert report.ok
    assert not report.errors


def test_every_window_once_in_an_order_that_another_process_repeats(ran):
    command = [sys.executable, "-c", ORDER, str(EXAMPLE), str(ran[0])]
    runs = [
        json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    first, second = ([tuple(window) for window in epoch] for epoch in runs[0])
    ids = sl.open(ran[0]).to_arrow()["sequence_id"].to_pylist()
    every = {(key, start) for key in ids for start in range(10)}
    assert sorted(first) == sorted(second) == sorted(every)
    assert first != second
    assert first != sorted(first)


def test_windows_hold_the_values_of_the_source(ran):
    dataset, episodes = sl.open(ran[0]), truth()
    place = {key: row for row, key in enumerate(dataset.to_arrow()["sequence_id"].to_pylist())}
    loader = sl.Loader(dataset, window={"state": range(-1, 1), "action": range(4)}, batch_size=32, seed=7).tail("pad")
    seen = 0
    for batch in loader:
        for k in np.flatnonzero(batch["valid"]):
            episode, start = episodes[place[batch["sequence_id"][k]]], int(batch["start"][k])
            for name, key, offsets in (
                ("action", "steps/action", range(4)),
                ("state", "steps/observation/state", range(-1, 1)),
            ):
                whole = episode[key].reshape(10, 7)
                for place_in_window, offset in enumerate(offsets):
                    inside = 0 <= start + offset < 10
                    assert batch[f"{name}_mask"][k, place_in_window] == inside
                    expected = whole[start + offset] if inside else np.zeros(7, np.float32)
                    assert batch[name][k, place_in_window].tobytes() == expected.tobytes()
            seen += 1
    assert seen == 250
