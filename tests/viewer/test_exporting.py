"""What an export holds, how large it may be, and what is left where it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import seqlake as sl
from seqlake.cli._main import cli
from seqlake.errors import DatasetExistsError, QueryError, SequenceNotFoundError
from seqlake.viewer import exporting


@pytest.fixture
def dataset(tmp_path: Path) -> sl.Dataset:
    columns = {
        "sequence_id": pa.string(),
        "reward": pa.float64(),
        "cam": sl.Video(fps=10),
        "action": sl.Trajectory(dim=3, fps=10),
    }
    ds = sl.create(tmp_path / "arm", columns)
    with ds.writer() as writer:
        for number in range(3):
            frames = np.full((20, 32, 48, 3), 40 * number, np.uint8)
            writer.add(
                f"ep_{number}",
                reward=float("nan") if number == 2 else float(number),
                action=np.ones((20, 3), np.float32),
                cam=frames,
            )
    return ds


def said(path: Path) -> Any:
    """What a script of an export says."""
    text = path.read_text()
    return json.loads(json.loads(text[text.index("JSON.parse(") + 11 : -3]))


def test_it_holds_what_was_chosen_and_no_place_of_this_machine(dataset: sl.Dataset, tmp_path: Path) -> None:
    done = sl.view(dataset, where="reward < 1 OR isnan(reward)", export=tmp_path / "out")
    whole = said(tmp_path / "out" / "data.js")
    assert list(whole["sequences"]) == ["ep_0", "ep_2"]
    assert [row["values"]["reward"] for row in whole["replies"]["api/rows"]["rows"]] == [0.0, None]
    assert done.nbytes == sum(path.stat().st_size for path in done.folder.rglob("*") if path.is_file())
    for path in done.folder.rglob("*.js"):
        assert str(tmp_path) not in path.read_text()
    one = said(done.folder / whole["sequences"]["ep_2"])
    place = one["media?col=cam&id=ep_2"]
    assert (done.folder / place).read_bytes() == dataset.sequence("ep_2")["cam"].read()


def test_it_keeps_to_its_bound_and_leaves_nothing_behind(
    dataset: sl.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(QueryError, match="1 of 3 sequences have more"):
        sl.view(dataset, export=tmp_path / "out", most=1000)
    plan = exporting.plan(dataset, most=exporting.MOST)
    monkeypatch.setattr(exporting._Writing, "_copy", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        exporting.write(plan, dataset, tmp_path / "out")
    monkeypatch.undo()
    small = exporting.PagesPlan(items=plan.items, nbytes=plan.nbytes, most=plan.nbytes // 3)
    with pytest.raises(QueryError, match="nothing was written"):
        exporting.write(small, dataset, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arm"]
    done = exporting.write(plan, dataset, tmp_path / "out")
    assert 0.2 * plan.nbytes < done.nbytes <= plan.nbytes


def test_only_an_export_is_replaced(dataset: sl.Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("mine", "file"):
        with pytest.raises(DatasetExistsError):
            sl.view(dataset, "ep_0", export=tmp_path / name, overwrite=True)
    (tmp_path / "empty").mkdir()
    sl.view(dataset, "ep_0", export=tmp_path / "empty")
    with pytest.raises(DatasetExistsError, match="overwrite"):
        sl.view(dataset, "ep_1", export=tmp_path / "empty")
    sl.view(dataset, "ep_1", export=tmp_path / "empty", overwrite=True)
    assert list(said(tmp_path / "empty" / "data.js")["sequences"]) == ["ep_1"]
    with pytest.raises(SequenceNotFoundError):
        sl.view(dataset, "nobody", export=tmp_path / "other")
    with pytest.raises(QueryError, match="nothing to export"):
        sl.view(dataset, where="reward < -5", export=tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arm", "empty", "file", "mine"]


def test_rows_without_ids_of_their_own_are_named_by_their_numbers(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    ids = ["a", "a", ""]
    pq.write_table(pa.table({"sequence_id": ids, "x": [[1.0], [2.0], [3.0]]}), tmp_path / "rows.parquet")
    sl.view(sl.scan(tmp_path / "rows.parquet"), export=tmp_path / "out")
    whole = said(tmp_path / "out" / "data.js")
    named = {**whole["sequences"], **{f"row {row}": name for row, name in whole["rows"].items()}}
    assert len(named) == 3
    for name in named.values():
        assert any(address.startswith("api/sequence?") for address in said(tmp_path / "out" / name))


def test_the_command_says_the_size_first(dataset: sl.Dataset, tmp_path: Path) -> None:
    place = str(tmp_path / "arm")
    ran = CliRunner().invoke(cli, ["view", place, "--export", str(tmp_path / "out"), "--dry-run", "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["sequences"] == 3
    assert not (tmp_path / "out").exists()
    ran = CliRunner().invoke(
        cli, ["view", place, "--where", "reward >= 0 AND reward < 9", "--export", str(tmp_path / "out")]
    )
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.strip().endswith("index.html")
    assert "2 sequences with 2 films, about" in ran.stderr
    ran = CliRunner().invoke(cli, ["view", place, "--export", str(tmp_path / "out")])
    assert isinstance(ran.exception, DatasetExistsError)
    assert CliRunner().invoke(cli, ["view", place, "--dry-run"]).exit_code == 2
