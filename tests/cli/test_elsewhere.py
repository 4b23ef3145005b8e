"""`seqlake info` counts what leads to other places, against rows that were counted by hand, and asks none of them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

FILMS = [  # what rows name in turn; None: no film
    "files/own.mp4",
    "s3://films/2024/a.mp4",
    "s3://Films/2024/b.mp4",
    "S3://films/2024/c.mp4",
    "gs://others/d.mp4",
    "http://127.0.0.1:{port}/e.mp4?token=secret",
    "https://user:secret@cams.lab.example/f.mp4",
    "https://cams.lab.example/g.mp4",
    None,
]
COUNTED = {"s3://films": 3, "https://cams.lab.example": 2, "gs://others": 1, "http://127.0.0.1:{port}": 1}


def test_info_counts_references_to_other_buckets_and_hosts(run: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        schema = {"cam": sl.Video(), "log": sl.Column("log", pa.struct({"url": pa.string()}), sl.ColumnType("mcap"))}
        ds = sl.create(tmp_path / "arm", sl.Schema({**schema, "action": sl.Trajectory(dim=1)}))
        named = [one if one is None else one.format(port=port) for one in FILMS]
        steps = np.zeros((2, 1))
        ds.append({"sequence_id": f"ep_{n}", "cam": one, "log": None, "action": steps} for n, one in enumerate(named))
        ds.append([{"sequence_id": "log", "cam": None, "log": {"url": "s3://logs/a.mcap"}, "action": steps}])
        wanted = {place.format(port=port): count for place, count in COUNTED.items()} | {"s3://logs": 1}
        assert run("info", ds.location, "--json").json["elsewhere"] == wanted
        told = run("info", ds.location)
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert told.code == 0
    [line] = [line for line in told.out.splitlines() if line.startswith("references to other places: ")]
    assert line.startswith("references to other places: 3 in s3://films, 2 in https://cams.lab.example, ")
    assert "secret" not in told.out


def test_info_names_no_place_where_there_is_none(run: Any, dataset: Path) -> None:
    assert run("info", dataset, "--json").json["elsewhere"] == {}
    assert "other places" not in run("info", dataset).out


def test_info_of_a_dataset_in_a_bucket_does_not_count_its_own(run: Any, s3_environment: str) -> None:
    ds = sl.create(f"{s3_environment}/arm", sl.Schema({"cam": sl.Video()}))
    named = [f"{s3_environment}/arm/files/a.mp4", f"{s3_environment}/b.mp4", "files/c.mp4", "s3://films/d.mp4"]
    ds.append({"sequence_id": f"ep_{n}", "cam": one} for n, one in enumerate(named))
    assert run("info", ds.location, "--json").json["elsewhere"] == {"s3://films": 1}
