"""Writers: bytes against the layout, nothing claimed before it is there, going on after a kill, parallel writing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.abilities import Checked, ability
from seqlake.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidMetadataError,
    SchemaMismatchError,
    SeqlakeError,
    UnknownPluginError,
    ValidationError,
)
from seqlake.files.local import LocalStore
from seqlake.formats import jsonl, mds, xsv

from ..by_hand import config_of, shard_bytes  # noqa: TID252 - one tool for several formats

COLUMNS = {"b": "str", "a": "int", "c": "uint8"}
SAMPLES = [{"a": i - 5, "b": "ä" * (i % 7), "c": i, "more": None} for i in range(40)]


def cells(sample: dict[str, Any]) -> dict[str, bytes]:
    return {
        "a": sample["a"].to_bytes(8, "little", signed=True),
        "b": sample["b"].encode(),
        "c": bytes([sample["c"]]),
    }


def written(out: Path, samples=SAMPLES, columns=COLUMNS, **options: Any) -> Path:
    with sl.create(out, columns, format="mds", **options) as writer:
        for sample in samples:
            writer.write(sample)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_worked_example_of_the_layout(tmp_path: Path) -> None:
    samples = [{"a": 1, "b": "hé", "c": 7}, {"a": -2, "b": "", "c": 255}]
    out = written(tmp_path / "out", samples, size_limit=None, hashes=["sha1", "md5"])
    data = (out / "shard.00000.mds").read_bytes()
    assert data == shard_bytes(COLUMNS, [cells(s) for s in samples], size_limit=None, hashes=["md5", "sha1"])
    config = config_of(COLUMNS, size_limit=None, hashes=["md5", "sha1"])
    digests = {name: hashlib.new(name, data).hexdigest() for name in ("md5", "sha1")}
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": digests}
    entry = {**config, "samples": 2, "raw_data": raw, "zip_data": None}
    assert (out / "index.json").read_text() == json.dumps({"version": 2, "shards": [entry]}, sort_keys=True)
    assert sorted(path.name for path in out.iterdir()) == ["index.json", "shard.00000.mds"]


def test_a_known_digest(tmp_path: Path) -> None:
    samples = [{"a": 1, "b": "hé", "c": 7}, {"a": -2, "b": "", "c": 255}]
    pytest.importorskip("xxhash")
    out = written(tmp_path / "out", samples, size_limit=None, hashes=["xxh3_64", "sha1"])
    [entry] = json.loads((out / "index.json").read_text())["shards"]
    assert entry["raw_data"]["bytes"] == 256
    assert entry["raw_data"]["hashes"] == {
        "sha1": "df680aa3dff4c12a05bcfc9945cac40f05d5583f",
        "xxh3_64": "df2eee283ba180af",
    }


def test_shards_end_where_the_limit_says(tmp_path: Path) -> None:
    out = written(tmp_path / "out", size_limit=400)
    index = json.loads((out / "index.json").read_text())
    sizes = [entry["raw_data"]["bytes"] for entry in index["shards"]]
    assert max(sizes) <= 400
    for entry, following in zip(index["shards"], index["shards"][1:], strict=False):
        data = (out / following["raw_data"]["basename"]).read_bytes()
        first, second = np.frombuffer(data, "<u4", 2, 4).tolist() if following["samples"] > 1 else (0, 400)
        assert entry["raw_data"]["bytes"] + 4 + second - first > 400
    assert sl.scan(out).to_arrow()["a"].to_pylist() == [sample["a"] for sample in SAMPLES]


def test_a_first_sample_above_the_limit_leaves_an_empty_shard_before_it(tmp_path: Path) -> None:
    out = written(tmp_path / "out", [{"x": b"1" * 500}, {"x": b"2" * 500}], {"x": "bytes"}, size_limit=300)
    index = json.loads((out / "index.json").read_text())
    assert [entry["samples"] for entry in index["shards"]] == [0, 1, 1]
    assert len(sl.scan(out).to_arrow()) == 2


def test_bytes_are_stored_untouched_whatever_the_encoding(tmp_path: Path) -> None:
    out = written(tmp_path / "out", [{"a": bytes(8), "b": b"raw", "c": b"\7"}])
    assert sl.scan(out).to_arrow().to_pylist() == [{"a": 0, "b": "raw", "c": 7}]


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        ({"a": 1, "b": "x"}, "column 'c' is missing"),
        ({"a": 1.5, "b": "x", "c": 1}, "column 'a': expected an int, found float"),
        ({"a": np.int64(1), "b": "x", "c": 1}, "column 'a'"),
        ({"a": None, "b": "x", "c": 1}, "column 'a'"),
        ({"a": 1 << 63, "b": "x", "c": 1}, "column 'a'"),
        ({"a": 1, "b": 5, "c": 1}, "column 'b': expected a str"),
        ({"a": 1, "b": "x", "c": 256}, "column 'c'"),
        ({"a": b"1", "b": "x", "c": 1}, "1 bytes are given where 8"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_the_rest_goes_on(tmp_path: Path, sample: dict, what: str) -> None:
    with sl.create(tmp_path / "out", COLUMNS, format="mds") as writer:
        writer.write(SAMPLES[0])
        with pytest.raises(ValidationError, match="Sample 1") as found:
            writer.write(sample)
        assert what in str(found.value)
        writer.write(SAMPLES[1])
    assert len(sl.scan(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("ndarray", np.zeros(0)),
        ("ndarray", np.float32(1)),
        ("ndarray", np.array(1.0)),
        ("ndarray", np.array(["x"])),
        ("ndarray:float32", np.zeros(3)),
        ("ndarray:float32:3", np.zeros(4, "f4")),
        ("ndarray", [1, 2]),
        ("jpeg", 5),
        ("pil", "x"),
        ("list[png]", "x"),
        ("jpeg_array", []),
        ("json", {1, 2}),
        ("str_float", 1),
        ("str_int", 1.0),
    ],
)
def test_values_no_encoding_takes(tmp_path: Path, encoding: str, value: Any) -> None:
    writer = sl.create(tmp_path / "out", {"x": encoding}, format="mds")
    with pytest.raises(ValidationError, match="column 'x'"):
        writer.write({"x": value})
    writer.finish()
    assert len(sl.scan(tmp_path / "out")) == 0


def test_big_endian_arrays_are_stored_little_endian(tmp_path: Path) -> None:
    out = written(tmp_path / "out", [{"x": np.arange(3, dtype=">i4")}], {"x": "ndarray"})
    assert sl.scan(out).to_arrow()["x"].to_pylist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zip"},
        {"hashes": ["crc32"]},
        {"size_limit": 1 << 32},
        {"size_limit": "5 gb"},
        {"size_limit": -1},
        {"mode": "w"},
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, options: dict) -> None:
    with pytest.raises(ValueError):
        sl.create(tmp_path / "out", COLUMNS, format="mds", **options)
    assert not (tmp_path / "out").exists()


def test_columns_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(InvalidMetadataError, match="'floot'"):
        sl.create(tmp_path / "out", {"x": "floot"}, format="mds")
    with pytest.raises(ValueError, match="one column"):
        sl.create(tmp_path / "out", {}, format="mds")
    with pytest.raises(ValueError, match="expected str, int, float"):
        sl.create(tmp_path / "out", {"x": "bytes"}, format="xsv")
    with pytest.raises(UnknownPluginError):
        sl.create(tmp_path / "out", {"x": "bytes"}, format="nope")
    with pytest.raises(TypeError, match="partition_by"):
        sl.create(tmp_path / "out", {"x": "bytes"}, format="mds", partition_by=["x"])
    with pytest.raises(TypeError, match="format"):
        sl.create(tmp_path / "out", {}, compression="zstd")


@pytest.mark.parametrize("value", ["a,b", "a\nb"])
def test_separated_values_are_never_quoted(tmp_path: Path, value: str) -> None:
    writer = sl.create(tmp_path / "out", {"x": "str", "y": "str"}, format="xsv")
    with pytest.raises(ValidationError, match="nothing is quoted"):
        writer.write({"x": value, "y": ""})


def test_marks_that_arise_between_values_are_refused(tmp_path: Path) -> None:
    with sl.create(tmp_path / "out", {"x": "str", "y": "str"}, format="xsv", separator="||") as writer:
        with pytest.raises(ValidationError, match="together"):
            writer.write({"x": "a|", "y": "|b"})
        writer.write({"x": "a|b", "y": "c"})
    assert sl.scan(tmp_path / "out").to_arrow().to_pylist() == [{"x": "a|b", "y": "c"}]


@pytest.mark.parametrize("separator", [",", "\t", "||"])
def test_separated_values_come_back(tmp_path: Path, separator: str) -> None:
    samples = [{"t": f"w {i}", "i": 10**i, "x": [0.1, float("inf"), -0.0][i % 3]} for i in range(15)]
    columns = {"t": "str", "i": "int", "x": "float"}
    with xsv.writer(str(tmp_path / "out"), columns, separator=separator, size_limit=100, compression="bz2") as writer:
        writer.write_all(samples)
    assert sl.scan(tmp_path / "out").select("t", "i", "x").to_arrow().to_pylist() == samples


def test_json_lines_come_back(tmp_path: Path) -> None:
    samples = [{"t": f"w\n{i}", "i": -i, "x": i / 3} for i in range(15)]
    columns = {"t": "str", "i": "int", "x": "float"}
    with jsonl.writer(str(tmp_path / "out"), columns, newline="\r\n", size_limit=100) as writer:
        writer.write_all(samples)
    assert (tmp_path / "out" / "shard.00000.json").read_bytes().startswith(b'{"i": 0, "t": "w\\n0", "x": 0.0}\r\n')
    assert sl.scan(tmp_path / "out").select("t", "i", "x").to_arrow().to_pylist() == samples


# ---- nothing is claimed before it is there


def test_an_exception_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(KeyError), sl.create(tmp_path / "out", COLUMNS, format="mds", size_limit=300) as writer:
        writer.write_all(SAMPLES[:20])
        raise KeyError
    assert not (tmp_path / "out" / "index.json").exists()
    with pytest.raises(DatasetExistsError, match='interrupted run lies there: go on with mode="append"'):
        sl.create(tmp_path / "out", COLUMNS, format="mds", size_limit=300)


def test_an_occupied_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(DatasetExistsError, match="new or empty"):
        sl.create(tmp_path / "out", COLUMNS, format="mds")
    assert contents(tmp_path / "out") == {"mine.txt": b"mine"}


def test_a_shard_that_cannot_be_stored_is_raised_and_not_claimed(tmp_path: Path, monkeypatch) -> None:
    def full(self, path, data, **options):
        raise OSError(28, "No space left on device", path)

    writer = sl.create(tmp_path / "out", COLUMNS, format="mds", size_limit=300)
    monkeypatch.setattr(LocalStore, "put", full)
    with pytest.raises(OSError, match="No space left"):
        writer.write_all(SAMPLES)
        writer.finish()
    monkeypatch.undo()
    with pytest.raises(SeqlakeError, match='mode="append"'):
        writer.finish()
    assert not (tmp_path / "out" / "index.json").exists()


def test_an_index_that_cannot_be_stored_is_not_forgotten(tmp_path: Path, monkeypatch) -> None:
    real = LocalStore.put

    def full(self, path, data, **options):
        if path == "index.json":
            raise OSError(28, "No space left on device", path)
        real(self, path, data, **options)

    writer = sl.create(tmp_path / "out", COLUMNS, format="mds")
    writer.write_all(SAMPLES)
    monkeypatch.setattr(LocalStore, "put", full)
    with pytest.raises(OSError, match="No space left"):
        writer.finish()
    with pytest.raises(SeqlakeError, match='mode="append"'):
        writer.finish()


def test_after_an_exception_the_writer_cannot_be_finished(tmp_path: Path) -> None:
    with pytest.raises(KeyError), sl.create(tmp_path / "out", COLUMNS, format="mds") as writer:
        writer.write(SAMPLES[0])
        raise KeyError
    with pytest.raises(SeqlakeError, match="not finished"):
        writer.finish()
    with pytest.raises(KeyError), sl.create(tmp_path / "whole", COLUMNS, format="mds") as writer:
        writer.finish()
        raise KeyError
    writer.finish()
    assert len(sl.scan(tmp_path / "whole")) == 0


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = sl.create(tmp_path / "out", COLUMNS, format="mds")
    writer.finish()
    writer.finish()
    with pytest.raises(SeqlakeError, match="closed"):
        writer.write(SAMPLES[0])


def test_offsets_end_at_four_gigabytes(tmp_path: Path, monkeypatch) -> None:
    from seqlake.formats._streaming import writing

    monkeypatch.setattr(writing, "MOST", 900)
    with sl.create(tmp_path / "out", {"x": "bytes"}, format="mds", size_limit=None) as writer:
        writer.write({"x": bytes(400)})
        with pytest.raises(ValidationError, match="size_limit"):
            writer.write({"x": bytes(400)})
    assert len(sl.scan(tmp_path / "out")) == 1


# ---- appending, and going on after a kill


def test_append_adds_behind_what_is_there(tmp_path: Path) -> None:
    out = written(tmp_path / "out", SAMPLES[:13], size_limit=300, hashes=["sha1"])
    before = contents(out)
    with sl.create(out, COLUMNS, format="mds", mode="append", size_limit=300, hashes=["sha1"]) as writer:
        assert (writer.samples, writer.kept) == (13, 0)
        writer.write_all(SAMPLES[13:])
        assert contents(out)["index.json"] == before["index.json"]
    after = contents(out)
    assert all(after[name] == data for name, data in before.items() if name != "index.json")
    assert sl.scan(out).to_arrow()["a"].to_pylist() == [sample["a"] for sample in SAMPLES]


def test_append_to_nothing_begins(tmp_path: Path) -> None:
    assert contents(written(tmp_path / "a", mode="append")) == contents(written(tmp_path / "b"))


class Killed(BaseException):
    pass


def killed_after(puts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storing stops for good after so many files, as it does for a process that is gone."""
    real, left = LocalStore.put, [puts]

    def put(self, path, data, **options):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        real(self, path, data, **options)

    monkeypatch.setattr(LocalStore, "put", put)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("before", [0, 9])
def test_a_run_goes_on_after_a_kill_at_any_file(tmp_path: Path, monkeypatch, before: int, compression) -> None:
    pytest.importorskip("zstandard")
    options = {"size_limit": 330, "compression": compression, "hashes": ["md5"]}

    def begun(out: Path) -> Path:
        return written(out, SAMPLES[:before], **options) if before else out

    with sl.create(begun(tmp_path / "whole"), COLUMNS, format="mds", mode="append", **options) as writer:
        writer.write_all(SAMPLES[before:])
    whole = contents(tmp_path / "whole")
    puts, interrupted = 0, True
    while interrupted:
        out = begun(tmp_path / f"out-{puts}")
        old = (out / "index.json").read_bytes() if before else None
        with monkeypatch.context() as patch:
            killed_after(puts, patch)
            try:
                with sl.create(out, COLUMNS, format="mds", mode="append", **options) as writer:
                    writer.write_all(SAMPLES[before:])
                interrupted = False
            except Killed:
                claimed = out / "index.json"
                assert (claimed.read_bytes() if claimed.exists() else None) == old
        if interrupted:
            with sl.create(out, COLUMNS, format="mds", mode="append", **options) as writer:
                assert before <= writer.samples <= len(SAMPLES)
                assert writer.kept == writer.samples - before
                writer.write_all(SAMPLES[writer.samples :])
            assert contents(out) == whole, puts
        puts += 1
    assert puts > 6


@pytest.mark.parametrize("forgotten", [0, 1, 3])
def test_a_kill_while_the_journal_is_removed_loses_nothing(tmp_path: Path, monkeypatch, forgotten: int) -> None:
    whole = contents(written(tmp_path / "whole", size_limit=330))
    real = LocalStore.delete

    def delete(self, paths):
        names = list(paths)
        real(self, names[:forgotten])
        if names:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", delete)
        with pytest.raises(Killed):
            written(tmp_path / "out", size_limit=330)
    assert (tmp_path / "out" / "_writing" / "settings.json").exists()
    with sl.create(tmp_path / "out", COLUMNS, format="mds", mode="append", size_limit=330) as writer:
        assert (writer.samples, writer.kept) == (len(SAMPLES), 0)
    assert contents(tmp_path / "out") == whole


def test_an_index_whose_next_name_is_taken_is_not_appended_to(tmp_path: Path) -> None:
    out = written(tmp_path / "out", size_limit=330)
    index = json.loads((out / "index.json").read_text())
    del index["shards"][0]
    (out / "index.json").write_text(json.dumps(index))
    before = contents(out)
    last = index["shards"][-1]["raw_data"]["basename"]
    with pytest.raises(DatasetExistsError, match=last):
        sl.create(out, COLUMNS, format="mds", mode="append", size_limit=330)
    assert contents(out) == before


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 here")
def test_a_real_kill_leaves_finished_shards(tmp_path: Path) -> None:
    code = f"""
import os, signal
import seqlake as sl
from seqlake.files.local import LocalStore
real, seen = LocalStore.put, []
def put(self, path, data, **options):
    if path.endswith("00002.json"):
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, path, data, **options)
LocalStore.put = put
with sl.create({str(tmp_path / "out")!r}, {COLUMNS!r}, format="mds", size_limit=330) as writer:
    writer.write_all({SAMPLES!r})
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out" / "index.json").exists()
    with sl.create(tmp_path / "out", COLUMNS, format="mds", size_limit=330, mode="append") as writer:
        writer.write_all(SAMPLES[writer.samples :])
    assert contents(tmp_path / "out") == contents(written(tmp_path / "whole", size_limit=330))


def test_an_interrupted_run_of_other_columns_is_not_taken_over(tmp_path: Path) -> None:
    with pytest.raises(KeyError), sl.create(tmp_path / "out", COLUMNS, format="mds") as writer:
        writer.write(SAMPLES[0])
        raise KeyError
    before = contents(tmp_path / "out")
    with pytest.raises(SchemaMismatchError, match="other columns or settings"):
        sl.create(tmp_path / "out", {"a": "int"}, format="mds", mode="append")
    assert contents(tmp_path / "out") == before


# ---- parallel writing


def test_parts_merge_in_numeric_order_without_collisions(tmp_path: Path) -> None:
    for number in range(12):
        written(tmp_path / "out" / str(number), SAMPLES[3 * number : 3 * number + 3], size_limit=300)
    assert mds.merge(str(tmp_path / "out")) == 36
    table = sl.scan(tmp_path / "out").to_arrow()
    assert table["a"].to_pylist() == [sample["a"] for sample in SAMPLES[:36]]
    with pytest.raises(DatasetExistsError):
        mds.merge(str(tmp_path / "out"))


def test_parts_of_equal_names_below_different_folders_do_not_collide(tmp_path: Path) -> None:
    for number, name in enumerate(["x/0", "y/0"]):
        written(tmp_path / name, [SAMPLES[number]])
    mds.merge(str(tmp_path), ["y/0", "x/0"])
    assert sl.scan(tmp_path).to_arrow()["a"].to_pylist() == [SAMPLES[1]["a"], SAMPLES[0]["a"]]


def test_json_lines_merge_too(tmp_path: Path) -> None:
    for number in range(2):
        with jsonl.writer(str(tmp_path / str(number)), {"i": "int"}) as writer:
            writer.write({"i": number})
    jsonl.merge(str(tmp_path))
    assert sl.scan(tmp_path).to_arrow()["i"].to_pylist() == [0, 1]


def test_a_folder_within_another_is_not_counted_twice(tmp_path: Path) -> None:
    for number in range(2):
        written(tmp_path / "x" / str(number), [SAMPLES[number]])
    mds.merge(str(tmp_path / "x"))
    with pytest.raises(SeqlakeError, match=r"x and .*x/0, which lies in it"):
        mds.merge(str(tmp_path))
    assert mds.merge(str(tmp_path), ["x"]) == 2


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        mds.merge(str(tmp_path))
    with pytest.raises(DatasetNotFoundError, match="no/index.json"):
        mds.merge(str(tmp_path), ["no"])
    written(tmp_path / "0")
    sl.create(tmp_path / "0", COLUMNS, format="mds", mode="append")
    with pytest.raises(SeqlakeError, match="still being written"):
        mds.merge(str(tmp_path))


def test_a_bucket_is_written_and_appended_to(s3_bucket) -> None:
    options = {"format": "mds", "size_limit": 300, "storage": s3_bucket.storage, "hashes": ["sha1"]}
    with sl.create(f"{s3_bucket.uri}/set", COLUMNS, **options) as writer:
        writer.write_all(SAMPLES[:20])
    with sl.create(f"{s3_bucket.uri}/set", COLUMNS, mode="append", **options) as writer:
        writer.write_all(SAMPLES[20:])
    rows = sl.scan(f"{s3_bucket.uri}/set", storage=s3_bucket.storage)
    assert rows.to_arrow()["a"].to_pylist() == [sample["a"] for sample in SAMPLES]
    assert [finding for finding in ability(rows, Checked).check("rows") if finding.severity != "note"] == []


def test_a_writer_that_is_dropped_says_that_nobody_reads_it(tmp_path: Path) -> None:
    writer = sl.create(tmp_path / "out", COLUMNS, format="mds")
    writer.write(SAMPLES[0])
    with pytest.warns(UserWarning, match=r"gone before it was finished.*call finish\(\)"):
        del writer
    with sl.create(tmp_path / "out", COLUMNS, format="mds", mode="append") as writer:
        writer.write(SAMPLES[0])
    del writer  # in silence


def test_a_writer_takes_the_words_of_the_official_ones(tmp_path: Path) -> None:
    expected = contents(written(tmp_path / "a", size_limit=200))
    words: dict[str, Any] = {"compression": None, "hashes": None, "size_limit": 200, "exist_ok": True}
    out = tmp_path / "b"
    for samples in (SAMPLES[:20] * 9, SAMPLES):  # the second run replaces the longer one before
        with sl.create(out=str(out), columns=COLUMNS, format="mds", **words) as writer:
            writer.write_all(samples)
    assert contents(out) == expected
    with pytest.raises(DatasetExistsError):
        sl.create(out=out, columns=COLUMNS, format="mds")
    for word in ("keep_local", "progress_bar", "max_workers", "retry"):
        with pytest.raises(TypeError, match=f"'mds' takes no option '{word}'.*MosaicML Streaming: leave it out"):
            sl.create(out=out, columns=COLUMNS, format="mds", exist_ok=True, **{word: 1})
    with pytest.raises(TypeError, match="expected one location"):
        sl.create(out=(str(out), "s3://bucket/b"), columns=COLUMNS, format="mds")
    for wrong in ({"columns": COLUMNS}, {"out": out}):
        with pytest.raises(TypeError, match=r"needs '(out|columns)' once"):
            sl.create(format="mds", **wrong)
    with pytest.raises(TypeError, match="needs 'out' once"):
        sl.create(out, COLUMNS, format="mds", out=out)
    with pytest.raises(TypeError, match="exist_ok=True begins anew"):
        sl.create(out, COLUMNS, format="mds", exist_ok=True, mode="append")
    with pytest.raises(TypeError, match="a location and a schema"):
        sl.create(out)
    assert contents(out) == expected  # a wrong call removes nothing


def test_only_what_a_writer_wrote_is_replaced(tmp_path: Path) -> None:
    out = written(tmp_path / "a", size_limit=200)
    (out / "notes.txt").write_text("mine")
    before = contents(out)
    with pytest.raises(DatasetExistsError, match=r"notes\.txt, which no writer wrote"):
        sl.create(out, COLUMNS, format="mds", exist_ok=True)
    assert contents(out) == before
    (out / "notes.txt").unlink()
    interrupted = sl.create(out, COLUMNS, format="mds", mode="append", size_limit=200)
    with pytest.raises(RuntimeError), interrupted:
        interrupted.write_all(SAMPLES)
        raise RuntimeError
    assert any(name.startswith("_writing/") for name in contents(out))
    writer = sl.create(out, {"z": "int"}, format="mds", exist_ok=True)
    with pytest.raises(DatasetNotFoundError):  # the old index is gone before a shard is
        sl.scan(out)
    with writer:
        writer.write({"z": 1})
    assert sl.scan(out).to_arrow().to_pydict() == {"z": [1]}
    assert sorted(contents(out)) == ["index.json", "shard.00000.mds"]


@pytest.mark.parametrize(
    ("word", "here"),
    [
        ("validate_hash", "leave it out"),
        ("allow_unsafe_types", "allow_pickle"),
        ("remote", "sl.scan"),
        ("keep_zip", ""),
    ],
)
def test_words_of_the_official_dataset_are_refused_with_those_of_here(tmp_path: Path, word: str, here: str) -> None:
    out = written(tmp_path / "a")
    for named in ({}, {"format": "mds"}):
        with pytest.raises(TypeError, match=f"takes no option '{word}'.*From MosaicML Streaming: .*{here}"):
            sl.scan(out, **named, **{word: "x"})
