"""Tar shards read in place and written, against the webdataset package and tarfile."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.abilities import Checked, HoldsFiles, SaysMapping, ability
from seqlake.errors import (
    ColumnNotFoundError,
    CorruptFileError,
    DatasetNotFoundError,
    InvalidMetadataError,
    SeqlakeError,
    ValidationError,
)
from seqlake.files.blobs import MemoryBlob
from seqlake.formats import webdataset
from seqlake.formats.webdataset.places import braces
from seqlake.formats.webdataset.tar import BLOCK, members
from seqlake.media import encode_image
from seqlake.protocols import Readable
from seqlake.testing.formats import FormatTests

from ..lerobot import by_hand  # noqa: TID252 - a recorder for several formats

wds = pytest.importorskip("webdataset")
# The package leaves files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
NAMED = r"(?P<ep>.*)_(?P<step>\d+)"


def samples(shard: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(shard)
    made = []
    for step in range(5 + shard):
        one = {
            "__key__": f"ep{shard}_{step:04d}",
            "jpg": encode_image(rng.integers(0, 256, (8, 6, 3)).astype("u1"), format="jpeg"),
            "cls": step - 2,
            "json": {"step": step, "who": {"name": f"n{shard}", "ok": step % 2 == 0}},
            "state.npy": rng.normal(size=3).astype("f4"),
            "grid.npy": np.asfortranarray(rng.integers(0, 9, (step + 1, 2, 2))),
            "txt": f"tëxt {step}",
            "pyd": {"x": step},
        }
        if step == 3:
            del one["cls"], one["state.npy"]
        made.append(one)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tars")
    for shard in range(2):
        with wds.TarWriter(str(place / f"s-{shard:03d}.tar")) as sink:
            for one in samples(shard):
                sink.write(one)
    return place


class TestWebDataset(FormatTests):
    @pytest.fixture
    def source(self, folder: Path) -> Readable:
        return webdataset.scan(str(folder), key=NAMED)


def official(location: str) -> list[dict[str, Any]]:
    return list(wds.WebDataset(location, shardshuffle=False, empty_check=False))


def test_every_file_is_that_of_the_package(folder: Path) -> None:
    assert webdataset.matches(str(folder))
    ds = sl.scan(folder, key=NAMED)
    rows = ds.to_arrow().to_pylist()
    theirs = [one for shard in range(2) for one in official(str(folder / f"s-{shard:03d}.tar"))]
    assert len(rows) == len(theirs) == 11
    for row, raw, known in zip(rows, theirs, samples(0) + samples(1), strict=True):
        assert row["__key__"] == raw["__key__"]
        assert (row["jpg"], row["pyd"]) == (raw["jpg"], raw["pyd"])
        assert json.loads(row["json"]) == known["json"]
        assert row["txt"] == known["txt"]
        assert row["cls"] == known.get("cls")
        assert (row["ep"], row["step"]) == (known["__key__"][:3], int(known["__key__"][4:]))
        for name in ("state.npy", "grid.npy"):
            if name in known:
                read = np.array(row[name]).reshape(known[name].shape)
                np.testing.assert_array_equal(read, known[name])
            else:
                assert row[name] is None
    assert ds.schema["state.npy"].category == "vector"
    assert ds.schema["grid.npy"].type.get("shape") == [2, 2]
    assert ds.schema["jpg"].medium == "image"


def test_samples_become_sequences(folder: Path, tmp_path: Path) -> None:
    ds = sl.convert(
        folder, tmp_path / "ours", key=NAMED, without=["state.npy", "cls"], sequence_id="ep", steps="step",
        progress=False, workers=1,
    )  # fmt: skip
    assert [row["sequence_id"] for row in ds] == ["ep0", "ep1"]
    assert list(ds["ep1"]["txt"]) == [one["txt"] for one in samples(1)]
    assert [bytes(ds["ep1"]["jpg"].bytes(n)) for n in range(6)] == [one["jpg"] for one in samples(1)]


def test_fields_of_json_and_types_are_declared(folder: Path) -> None:
    declared = {
        "label": "cls",
        "who": "json/who/name",
        "ok": "json/who/ok",
        "all": "json/who",
        "none": "json/nothing",
        "cam": {"source": "jpg", "type": "image", "orientation": "apply"},
    }
    ds = sl.scan(folder, map=declared)
    rows = ds.to_arrow().to_pylist()
    assert [row["who"] for row in rows] == ["n0"] * 5 + ["n1"] * 6
    assert rows[1]["ok"] is False
    assert json.loads(rows[1]["all"]) == {"name": "n0", "ok": False}
    assert {row["none"] for row in rows} == {None}
    assert ds.schema["cam"].type.get("orientation") == "apply"
    known = ability(webdataset.scan(str(folder), map=declared), SaysMapping)
    assert known
    said = {one.source: one.column for one in known.mapping()}
    assert (said["cls"], said["pyd"]) == ("label", None)
    with pytest.raises(ColumnNotFoundError, match="No file ends in 'nope'"):
        sl.scan(folder, map={"a": "nope"})
    with pytest.raises(InvalidMetadataError, match="is no JSON"):
        sl.scan(folder, map={"a": "txt/field"})
    with pytest.raises(InvalidMetadataError, match="fits no key"):
        sl.scan(folder, key=r"(?P<a>zzz)")
    with pytest.raises(ValueError, match="key: expected a regular expression"):
        sl.scan(folder, key="no groups")


def test_compressed_shards_braces_and_one_file(folder: Path, tmp_path: Path) -> None:
    import gzip

    here = sl.scan(folder).to_arrow()
    for shard in range(2):
        data = (folder / f"s-{shard:03d}.tar").read_bytes()
        (tmp_path / f"s-{shard:03d}.tar.gz").write_bytes(gzip.compress(data[:700]) + gzip.compress(data[700:]))
    packed = sl.scan(tmp_path).to_arrow()
    assert packed.drop_columns(["__url__"]).equals(here.drop_columns(["__url__"]))
    named = sl.scan(f"{folder}/s-{{000..001}}.tar").to_arrow()
    assert named.equals(here)
    assert len(sl.scan(folder / "s-001.tar")) == 6
    assert list(braces("a{1..3}{x,y}")) == [f"a{n}{c}" for n in "123" for c in "xy"]
    with pytest.raises(CorruptFileError, match="makes more than 1000 bytes"):
        sl.scan(tmp_path, shard_bytes=1000)
    whole = (tmp_path / "s-000.tar.gz").read_bytes()
    (tmp_path / "s-000.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptFileError, match="cut off|no gzip"):
        sl.scan(tmp_path)


def energon(folder: Path, splits: str, *, counts: dict[str, int] | None = None) -> None:
    meta = folder / ".nv-meta"
    meta.mkdir(exist_ok=True)
    (meta / "split.yaml").write_text(splits)
    (meta / ".info.json").write_text(json.dumps({"shard_counts": counts or {}}))


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    for path in folder.glob("*.tar"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_splits_and_indexes_of_energon(copied: Path) -> None:
    pytest.importorskip("yaml")
    energon(
        copied,
        "split_parts:\n  train: ['s-{000..000}.tar']\n  val: [s-001.tar]\nexclude: [s-001.tar/ep1_0002]\n",
        counts={"s-000.tar": 5, "s-001.tar": 6},
    )
    with tarfile.open(copied / "s-000.tar") as archive:
        begins = {}
        for member in archive:
            begins.setdefault(member.name.split(".")[0], member.offset)
    offsets = [*begins.values(), (copied / "s-000.tar").stat().st_size]
    (copied / "s-000.tar.idx").write_bytes(struct.pack(f"<{len(offsets)}Q", *offsets))
    ds = sl.scan(copied)
    assert ds.sql("SELECT split, count(*) FROM dataset GROUP BY ALL ORDER BY 1").fetchall() == [
        ("train", 5),
        ("val", 5),
    ]
    assert len(sl.scan(copied, split="val")) == 5
    with pytest.raises(DatasetNotFoundError, match="no split 'test'"):
        sl.scan(copied, split="test")
    known: Any = ability(webdataset.scan(str(copied)), Checked)
    assert [one.code for one in known.check("metadata")] == []
    offsets[2] += BLOCK
    (copied / "s-000.tar.idx").write_bytes(struct.pack(f"<{len(offsets)}Q", *offsets))
    energon(copied, "split_parts: {train: [s-000.tar]}", counts={"s-000.tar": 4})
    known = ability(webdataset.scan(str(copied)), Checked)
    assert {one.code for one in known.check("metadata")} == {"webdataset-index", "webdataset-count"}
    for wrong in ("split_parts: {train: [../s.tar]}", "split_parts: {train: [/s.tar]}", "split_parts: 3", "[", "a: b"):
        energon(copied, wrong)
        with pytest.raises(InvalidMetadataError):
            sl.scan(copied, format="webdataset")
    energon(copied, "split_parts: {train: [gone.tar]}")
    with pytest.raises(DatasetNotFoundError, match="is not there"):
        sl.scan(copied, format="webdataset")


def test_files_of_media_are_read_where_they_lie(folder: Path) -> None:
    shard = webdataset.scan(str(folder)).shards()[0]
    reader = shard.open()
    known = ability(reader, HoldsFiles)
    assert known
    held = known.held("jpg", np.array([1, 0]))
    assert held is not None
    [(name, blob), _] = held  # type: ignore[misc]  # none is null
    assert name == "ep0_0001.jpg"
    assert bytes(blob.view() or b"") == samples(0)[1]["jpg"]


def test_in_a_bucket(folder: Path, s3_bucket: Any) -> None:
    from seqlake.files.stores import open_store

    store = open_store(f"{s3_bucket.uri}/tars", storage=s3_bucket.storage)
    for path in folder.glob("*.tar"):
        store.put(path.name, path.read_bytes())
    assert sl.scan(f"{s3_bucket.uri}/tars", storage=s3_bucket.storage).to_arrow().equals(sl.scan(folder).to_arrow())


# ---- tar archives by themselves


def archive(entries: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for info, data in entries:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=6),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]),
)
def test_members_are_those_of_tarfile(files: list[tuple[str, bytes]], form: int) -> None:
    try:
        data = archive([(tarfile.TarInfo(name), content) for name, content in files], form)
    except ValueError:  # a name that this form has no room for
        return
    with tarfile.open(fileobj=io.BytesIO(data), errors="strict", encoding="utf-8") as tar:
        known = [(one.name.rstrip("/"), one.offset_data, one.size) for one in tar if one.isreg()]
    ours = [(one.name.rstrip("/"), one.start, one.size) for one in members(MemoryBlob(data)) if not one.why]
    assert ours == known


def test_links_devices_and_sparse_files_are_left_out(tmp_path: Path) -> None:
    entries = []
    for number, kind in enumerate(
        [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
    ):
        info = tarfile.TarInfo(f"a{number}.txt")
        info.type, info.linkname = kind, "/etc/passwd"
        entries.append((info, b""))
    for name in ("../../up.txt", "/abs.txt", "good.txt", "__meta__", "noending"):
        entries.append((tarfile.TarInfo(name), b"text"))
    sparse = tarfile.TarInfo("hole.txt")
    sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "hole.txt"}
    entries.append((sparse, b"0\n"))
    (tmp_path / "x.tar").write_bytes(archive(entries, tarfile.PAX_FORMAT))
    source = webdataset.scan(str(tmp_path))
    assert [row["__key__"] for row in sl.scan(source).to_arrow().to_pylist()] == ["../../up", "/abs", "good"]
    codes = [one.code for one in source.check("metadata")]
    assert codes.count("webdataset-left-out") >= 5
    assert "webdataset-name" in codes
    sl.convert(source, tmp_path / "ours", sequence_id="__key__", progress=False, workers=1)
    assert not list(tmp_path.parent.glob("up*"))


def test_two_files_of_one_name(tmp_path: Path) -> None:
    twice = [(tarfile.TarInfo(name), b"1") for name in ("a.txt", "a.cls", "a.TXT")]
    (tmp_path / "x.tar").write_bytes(archive(twice))
    with pytest.raises(CorruptFileError, match="two files that end in 'txt'"):
        webdataset.scan(str(tmp_path))
    scattered = [(tarfile.TarInfo(name), b"1") for name in ("a.txt", "b.txt", "a.cls")]
    (tmp_path / "x.tar").write_bytes(archive(scattered))
    source = webdataset.scan(str(tmp_path))
    assert [one.code for one in source.check("metadata")] == ["webdataset-scattered"]
    assert len(sl.scan(source)) == len(official(str(tmp_path / "x.tar"))) == 3


def test_a_shard_that_ends_between_two_files(folder: Path, tmp_path: Path) -> None:
    """Nobody can know whether more followed: tarfile reads it, and validation says so."""
    whole = (folder / "s-000.tar").read_bytes()
    shard = webdataset.scan(str(folder)).survey.shards[0]
    (tmp_path / "x.tar").write_bytes(whole[: int(shard.begins[3])])
    source = webdataset.scan(str(tmp_path))
    assert len(sl.scan(source)) == 3
    assert [one.code for one in source.check("metadata")] == ["webdataset-end"]
    (tmp_path / "x.tar").write_bytes(whole[: int(shard.begins[3]) + 700])
    with pytest.raises(CorruptFileError, match="cut off"):
        webdataset.scan(str(tmp_path))


def test_files_that_are_not_what_they_say(tmp_path: Path) -> None:
    pickled = io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], object), allow_pickle=True)
    for ending, data in {"cls": b"x", "json": b"{", "txt": b"\xff", "npy": pickled.getvalue()}.items():
        (tmp_path / "x.tar").write_bytes(archive([(tarfile.TarInfo(f"a.{ending}"), data)]))
        source = webdataset.scan(str(tmp_path))
        if ending == "npy":
            assert sl.scan(source).to_arrow()["npy"].to_pylist() == [data]  # bytes, never loaded
            continue
        with pytest.raises(CorruptFileError, match=f"a.{ending} is not what its ending says"):
            sl.scan(source).to_arrow()
        assert [one.code for one in source.check("rows")] == ["webdataset-cell"]
    short = io.BytesIO()
    np.save(short, np.arange(5.0))
    for data in (short.getvalue()[:-8], short.getvalue().replace(b"(5,)", b"(9,)")):
        (tmp_path / "x.tar").write_bytes(archive([(tarfile.TarInfo("a.npy"), data)]))
        with pytest.raises(CorruptFileError, match="bytes, found"):
            sl.scan(tmp_path).to_arrow()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_is_an_error_of_ours_or_what_tarfile_reads(tmp_path: Path, folder: Path, data: st.DataObject) -> None:
    whole = bytearray((folder / "s-000.tar").read_bytes())
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole))) :]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(whole) // BLOCK - 1)) * BLOCK + data.draw(st.integers(0, 200))
            whole[at] = data.draw(st.integers(0, 255))
    place = tmp_path / "x.tar"
    place.write_bytes(whole)
    try:
        rows = sl.scan(place, format="webdataset").to_arrow().to_pylist()
    except SeqlakeError:
        return
    known = {}
    with tarfile.open(place) as tar, suppress(tarfile.ReadError):  # one that ends behind a file has no end for it
        for one in tar:
            if one.isreg():
                known[one.name] = tar.extractfile(one).read()  # type: ignore[union-attr]
    for row in rows:
        for ending in ("jpg", "pyd"):
            if row.get(ending) is not None:
                assert known[f"{row['__key__']}.{ending}"] == row[ending]


# ---- writing


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Any:
    schema = {
        "action": sl.Trajectory(dim=3),
        "Pose": sl.Trajectory(dim=4, shape=(2, 2), dtype=pa.float64()),
        "stamps": sl.Trajectory(dim=1, dtype=pa.int64()),
        "cam": sl.Image(frames="bytes", format="png"),
        "film": sl.Video(fps=10),
        "task": pa.string(),
        "n": pa.int64(),
        "words": pa.list_(pa.string()),
        "goal": sl.Embedding(dim=2),
        "blob": pa.binary(),
        "split": pa.string(),
    }
    rng = np.random.default_rng(5)
    with (ds := sl.create(tmp_path_factory.mktemp("arm") / "arm", schema)).writer() as writer:
        for number, steps in enumerate((4, 0, 6)):
            writer.add(
                f"run.{number}/x",
                action=rng.normal(size=(steps, 3)).astype("f4"),
                Pose=rng.normal(size=(steps, 4)),
                stamps=None if number == 1 else np.arange(steps)[:, None],
                cam=[encode_image(rng.integers(0, 256, (8, 6, 3)).astype("u1")) for _ in range(steps)],
                film=rng.integers(0, 256, (steps, 64, 48, 3)).astype("u1") if steps else None,
                task=f"do é {number}",
                n=None if number == 1 else number,
                words=["a", "ä"][:number],
                goal=np.array([number, 0.5], "f4"),
                blob=b"\x01\x02",
                split="val" if number == 2 else "train",
            )
    return sl.open(ds.location)


def test_the_package_reads_what_is_written(ours: Any, tmp_path: Path) -> None:
    sl.convert(ours, tmp_path / "out", to="webdataset", progress=False, workers=1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train-000000.tar", "val-000000.tar"]
    read = {}
    for path in sorted((tmp_path / "out").glob("*.tar")):
        for one in wds.WebDataset(str(path), shardshuffle=False, empty_check=False).decode():
            read[one["json"]["sequence_id"]] = one
    assert len(read) == 3
    for row in ours:
        one = read[row["sequence_id"]]
        assert one["json"]["task"] == row["task"]
        assert one["json"]["n"] == row["n"]
        assert one["json"]["words"] == list(row["words"])
        assert one["blob.bin"] == row["blob"]
        np.testing.assert_array_equal(one["goal.npy"], row["goal"])
        np.testing.assert_array_equal(one["action.npy"], row["action"])
        np.testing.assert_array_equal(one["pose.npy"], row["Pose"])
        assert one["pose.npy"].dtype == np.float64
        assert ("stamps.npy" in one) == (row["stamps"] is not None)
    raw = {one["json"]: one for path in (tmp_path / "out").glob("*.tar") for one in official(str(path))}
    for text, one in raw.items():
        row = ours[json.loads(text)["sequence_id"]]
        steps = len(row["action"])
        pictures = [one[f"cam.{step:06d}.png"] for step in range(steps)]
        assert pictures == [bytes(row["cam"].bytes(step)) for step in range(steps)]
        if steps:
            assert one["film.mp4"] == bytes(row["film"].blob().view())


def test_what_is_written_is_read_here(ours: Any, tmp_path: Path) -> None:
    sl.convert(ours, tmp_path / "out", to="webdataset", progress=False, workers=1, shard_bytes=1)
    assert len(list((tmp_path / "out").glob("*.tar"))) == 3
    ds = sl.convert(
        tmp_path / "out", tmp_path / "back", map={"sequence_id": "json/sequence_id", "task": "json/task",
        "action": "action.npy", "film": {"source": "film.mp4", "type": "video", "fps": 10}},
        sequence_id="sequence_id", progress=False, workers=1,
    )  # fmt: skip
    for row in ours:
        back = ds[row["sequence_id"]]
        assert back["task"] == row["task"]
        np.testing.assert_array_equal(back["action"], row["action"])
        if len(row["action"]):
            np.testing.assert_array_equal(back["film"][:], row["film"][:])
    frames = sl.scan(tmp_path / "out").to_arrow()
    assert sorted(len(cell or ()) for cell in frames["cam"].to_pylist()) == [0, 4, 6]


def test_parts_of_shared_videos_are_refused(tmp_path: Path) -> None:
    recorded = by_hand.write(tmp_path / "lerobot", by_hand.four(), "v3.0")
    with pytest.raises(ValidationError, match="part of a video that rows share"):
        sl.convert(recorded, tmp_path / "out", to="webdataset", progress=False, workers=1)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
