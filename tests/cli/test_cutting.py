"""`trim`, `segment` and `--overwrite`: what was made is told, and nothing else is touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import seqlake as sl
from seqlake.cli import _overwriting


def picture(number: int) -> np.ndarray:
    y, x = np.mgrid[:32, :48]
    return np.stack([x * 3 + 9 * number, y * 5, (x + y) + 7 * number], -1).astype(np.uint8)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def filmed(tmp_path: Path) -> Path:
    ds = sl.create(tmp_path / "filmed", sl.Schema({"x": sl.Trajectory(dim=1, fps=30), "cam": sl.Video(fps=30)}))
    with ds.writer() as writer:
        for number, steps in enumerate((24, 5)):
            writer.add(f"ep_{number}", x=np.arange(steps)[:, None], cam=[picture(n) for n in range(steps)])
    return tmp_path / "filmed"


def test_trim_tells_what_it_encoded_and_left_out(run, filmed, tmp_path) -> None:
    told = run("trim", filmed, tmp_path / "out", "--start", 5, "--stop", -2, "--json").json
    assert (told["rows"], told["left_out"], told["files"], told["frames"], told["encoded"]) == (1, ["ep_1"], 1, 17, 3)
    assert sl.open(tmp_path / "out")["ep_0"]["x"][:, 0].tolist() == list(range(5, 22))
    text = run("trim", filmed, tmp_path / "text", "--start", "0.5s").out
    assert "1 sequences have no such steps and are left out: ep_1" in text
    assert sl.open(tmp_path / "text")["ep_0"]["x"][:, 0].tolist() == list(range(15, 24))


def test_segment_writes_rows_with_names_of_their_own(run, filmed, tmp_path) -> None:
    assert run("segment", filmed, tmp_path / "out", "--at", "8,16", "--where", "sequence_id = 'ep_0'").code == 0
    assert run("ls", tmp_path / "out", "-q").out.split() == ["ep_0/000", "ep_0/001", "ep_0/002"]
    assert run("segment", filmed, tmp_path / "length", "--length", 10, "--min-length", 5, "--json").json["rows"] == 3
    times = run("segment", filmed, tmp_path / "times", "--at", "0.1s,0.2s", "--columns", "x", "--json").json
    assert (times["rows"], times["files"]) == (5, 0)


def test_how_to_cut_must_be_said(run, filmed, tmp_path) -> None:
    for arguments in (
        ["trim"],
        ["trim", "--start", "soon"],
        ["trim", "--start", "3", "--stop", "1s"],
        ["segment"],
        ["segment", "--length", "3", "--at", "4"],
        ["segment", "--at", "1s,4"],
        ["segment", "--at", ","],
    ):
        assert run(arguments[0], filmed, tmp_path / "out", *arguments[1:]).code == 2
    assert run("segment", filmed, tmp_path / "out", "--by", "nothing").code == 2
    assert run("trim", filmed, tmp_path / "out", "--start", 1, "--dry-run").code == 0
    assert not (tmp_path / "out").exists()


def test_outputs_are_new_or_empty_unless_they_may_be_replaced(run, filmed, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert run("trim", filmed, out, "--stop", 3, "--overwrite").code == 0  # empty
    first = everything(out)
    assert run("trim", filmed, out, "--stop", 2).code == 1
    assert everything(out) == first
    for verb in (
        ("trim", filmed, out, "--stop", 2),
        ("segment", filmed, out, "--length", 2),
        ("subset", filmed, out, "--where", "true"),
        ("repack", filmed, out),
        ("merge", filmed, out),
    ):
        assert run(*verb, "--overwrite").code == 0, verb
    assert sorted(one.name for one in tmp_path.iterdir()) == ["filmed", "out"]
    assert len(sl.open(out)["ep_0"]["cam"]) == 24
    assert sl.open(out).validate(depth="decode").ok


def test_what_cannot_be_written_leaves_the_old_as_it_was(run, filmed, tmp_path) -> None:
    out = tmp_path / "out"
    assert run("trim", filmed, out, "--stop", 3).code == 0
    before = everything(out)
    Path(sl.open(filmed)["ep_1"]["cam"].location).unlink()
    assert run("trim", filmed, out, "--stop", 2, "--overwrite").code == 1
    assert everything(out) == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["filmed", "out"]


def test_only_a_dataset_of_ours_and_nothing_else_is_replaced(run, dataset, tmp_path) -> None:
    def refused(out: Path, said: str) -> None:
        before = everything(tmp_path)
        told = run("subset", dataset, out, "--where", "reward < 2", "--overwrite")
        assert told.code == 2
        assert said in " ".join(told.err.split())
        assert everything(tmp_path) == before

    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "todo.txt").write_text("important")
    refused(notes, "holds other things too: todo.txt")
    (tmp_path / "file").write_text("important")
    refused(tmp_path / "file", "is a file")
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    refused(plain, "is none")
    out = tmp_path / "out"
    assert run("subset", dataset, out, "--where", "reward < 5").code == 0
    (tmp_path / "link").symlink_to(out, target_is_directory=True)
    refused(tmp_path / "link", "is a link")
    (out / "readme.md").write_text("mine")
    refused(out, "readme.md")
    (out / "readme.md").unlink()
    (out / "data" / "stranger.parquet").write_bytes(b"PAR1")
    refused(out, "stranger.parquet")
    refused(dataset, "is what is being read")


def test_a_dataset_is_not_replaced_by_what_lies_within_it(run, dataset, tmp_path) -> None:
    inner = dataset / "files" / "inner"
    assert run("subset", dataset, tmp_path / "apart", "--where", "reward < 5").code == 0
    shutil.copytree(tmp_path / "apart", inner)
    told = run("subset", inner, dataset, "--where", "reward < 2", "--overwrite")
    assert (told.code, len(sl.open(dataset))) == (2, 12)


def test_elsewhere_nothing_is_replaced(run, dataset, s3_environment) -> None:
    told = run("subset", dataset, f"{s3_environment}/out", "--where", "reward < 2", "--overwrite")
    assert told.code == 2
    assert "of this machine" in told.err


def test_folders_are_exchanged_also_where_the_system_cannot(run, dataset, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(_overwriting, "_at_once", lambda *_: False)
    out = tmp_path / "out"
    for limit in (5, 2):
        assert run("subset", dataset, out, "--where", f"reward < {limit}", "--overwrite").code == 0
        assert len(sl.open(out)) == limit
    assert sorted(one.name for one in tmp_path.iterdir()) == ["arm", "out"]


def test_all_of_a_remote_dataset_is_read_with_leave_only(run, dataset, s3_environment, monkeypatch) -> None:
    remote = f"{s3_environment}/arm"
    assert run("subset", dataset, remote, "--where", "true").code == 0
    assert run("stats", remote, "-q").code == 0  # small
    monkeypatch.setattr("seqlake.cli._remote.FREE", 100)
    for verb in ("stats", "validate"):
        told = run(verb, remote)
        assert told.code == 2
        assert "This reads all of" in told.err
        assert run(verb, remote, "--allow-remote-scan").code == 0
    assert run("info", remote).code == 0
    assert run("ls", remote).code == 0
    assert run("validate", remote, "--depth", "metadata").code == 0
    assert run("stats", dataset).code == 0


def test_a_remote_format_without_an_index_is_looked_at_with_leave_only(
    run, tmp_path, s3_environment, monkeypatch
) -> None:
    from seqlake.files.stores import open_store

    open_store(f"{s3_environment}/odd").put("train.tfrecord-00000-of-00001", b"x" * 500)
    monkeypatch.setattr("seqlake.cli._remote.FREE", 100)
    told = run("info", f"{s3_environment}/odd")
    assert told.code == 2
    assert "500 B" in told.err
    assert run("info", f"{s3_environment}/odd", "--allow-remote-scan").code == 1  # and it is no dataset


def test_resample_from_the_command_line(run, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"x": sl.Trajectory(dim=1, fps=10), "y": sl.Trajectory(dim=1, fps=10)}))
    ds.append([{"sequence_id": "a", "x": [[0.0], [1.0]], "y": [[0.0], [1.0]]}])
    told = run("resample", tmp_path / "ds", tmp_path / "out", "--fps", 20, "--method", "y=hold")
    assert (told.code, "1 sequences at 20 per second" in told.out) == (0, True)
    row = sl.open(tmp_path / "out")["a"]
    assert row["x"][:, 0].tolist() == [0.0, 0.5, 1.0, 1.0]
    assert row["y"][:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
    wrong = run("resample", tmp_path / "ds", tmp_path / "no", "--fps", 20, "--method", "hold", "--method", "y=hold")
    assert (wrong.code, (tmp_path / "no").exists()) == (2, False)
    assert run("resample", tmp_path / "ds", tmp_path / "no", "--fps", 20, "--dry-run").code == 0
    assert not (tmp_path / "no").exists()
