"""`seqlake similar`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import seqlake as sl


def test_the_nearest_are_listed(run, tmp_path) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    vectors[17] = vectors[3] * 2
    ds = sl.create(tmp_path / "ds", sl.Schema({"v": sl.Embedding(dim=8), "n": pa.int64()}))
    ds.append([{"sequence_id": f"ep_{n:02d}", "v": row, "n": n} for n, row in enumerate(vectors)])
    answer = run("similar", ds.location, "ep_03", "--by", "v", "-k", 2, "--json").json
    assert answer["rows"][0]["sequence_id"] == "ep_17"
    assert len(answer["rows"]) == 2
    asked = run("similar", ds.location, "ep_03", "--by", "v", "--where", "n < 10", "-q").out.split()
    assert len(asked) == 9
    assert "ep_03" not in asked
    nobody = run("similar", ds.location, "ep_99", "--by", "v")
    assert nobody.code == 1
    assert "no sequence has this id" in nobody.err
