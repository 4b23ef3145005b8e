"""`seqlake validate` at the depths that look into files."""

from __future__ import annotations

import numpy as np

import seqlake as sl


def test_what_files_hold_is_told_as_lines_and_as_data(run, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"cam": sl.Video(fps=30), "x": sl.Trajectory(dim=1)}))
    frames = np.zeros((4, 32, 32, 3), np.uint8)
    with ds.writer() as writer:
        writer.add("a", cam=frames, x=np.arange(4)[:, None])
        writer.add("b", cam=frames + np.arange(4, dtype=np.uint8)[:, None, None, None] * 60, x=np.arange(3)[:, None])
    told = run("validate", ds.location, "--depth", "decode", "--json")
    assert told.code == 0
    assert (told.json["depth"], told.json["errors"], told.json["warnings"], told.json["notes"]) == ("decode", 0, 1, 1)
    assert [(f["code"], f["sequence_id"]) for f in told.json["findings"]] == [("F421", "b"), ("F432", "a")]
    lines = run("validate", ds.location, "--depth", "decode", "--strict")
    assert lines.code == 1
    assert "cam: 4 frames, expected 3: x has 3 steps" in lines.out
    assert "0 errors, 1 warnings, 1 notes at depth decode" in lines.err
    (tmp_path / "ds" / ds[1]["cam"].reference).unlink()
    assert run("validate", ds.location).code == 1
    assert run("validate", ds.location, "--depth", "rows").code == 0
