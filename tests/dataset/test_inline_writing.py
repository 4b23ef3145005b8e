"""Files written into the rows: given in every form, by every verb that writes, in every home."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import InvalidMetadataError, SchemaMismatchError, ValidationError

from ..homes import PLACES  # noqa: TID252 - tests are no package that could be named
from ..media import clips  # noqa: TID252 - likewise
from .test_inline_media import FILMS, PHOTOS, STEPS, STRUCT, TONES, above_note

INLINE = {
    "cam": sl.Video(fps=30, inline=True),
    "photo": sl.Image(inline=True),
    "sound": sl.Audio(sample_rate=8000, inline=True),
    "action": sl.Trajectory(dim=2, fps=30),
}
ACTION = np.zeros((STEPS, 2))


def structs() -> sl.Schema:
    """Columns of `{bytes, path}`."""
    held = ("cam", "photo", "sound")
    return sl.Schema({n: sl.Column(n, STRUCT, kind) if n in held else kind for n, kind in INLINE.items()})


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    """One file of each kind."""
    places = {"cam": tmp_path / "a.mp4", "photo": tmp_path / "a.png", "sound": tmp_path / "a.wav"}
    for name, data in (("cam", FILMS[0]), ("photo", PHOTOS[0]), ("sound", TONES[0])):
        places[name].write_bytes(data)
    return places


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("home", PLACES)
def test_every_form_of_a_file_is_stored_as_its_bytes(home, files, tmp_path) -> None:
    place = PLACES[home].format(folder=tmp_path, name="ds")
    ds = sl.create(place, sl.Schema(INLINE))
    with ds.writer() as writer:
        writer.add("bytes", action=ACTION, **{name: path.read_bytes() for name, path in files.items()})
        writer.add("file", action=ACTION, **{name: sl.File(path) for name, path in files.items()})
        writer.add("path", action=ACTION, **files)
        pairs = {name: {"bytes": path.read_bytes(), "path": path.name} for name, path in files.items()}
        writer.add("pair", action=ACTION, **pairs)
        writer.add("none", action=ACTION)
    ds = sl.open(place)
    assert ds.schema["cam"].type == INLINE["cam"]
    for name, path in files.items():
        cells = dict(zip(ds.to_arrow()["sequence_id"].to_pylist(), ds.to_arrow()[name].to_pylist(), strict=True))
        assert cells == {"none": None, **dict.fromkeys(("bytes", "file", "path", "pair"), path.read_bytes())}
    assert ds.files() == []
    assert above_note(ds) == []
    assert not [one for one in tmp_path.rglob("*.mp4") if one != files["cam"]]
    np.testing.assert_array_equal(ds.sequence("file")["photo"][0], clips.picture(0))


def test_columns_of_bytes_and_path_keep_the_name(files, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", structs())
    rows = [
        {"sequence_id": "file", "action": ACTION, **{name: sl.File(path) for name, path in files.items()}},
        {"sequence_id": "bytes", "action": ACTION, "cam": FILMS[1]},
        {"sequence_id": "pair", "action": ACTION, "cam": {"bytes": FILMS[1], "path": "was.mp4"}},
    ]
    ds.append(rows)
    cells = sl.open(tmp_path / "ds").to_arrow()["cam"].to_pylist()
    assert [one["path"] for one in cells] == ["a.mp4", None, "was.mp4"]
    assert [one["bytes"] for one in cells] == [FILMS[0], FILMS[1], FILMS[1]]
    assert above_note(sl.open(tmp_path / "ds")) == []


@pytest.mark.parametrize("schema", [sl.Schema(INLINE), structs()], ids=["binary", "struct"])
def test_update_upsert_and_new_columns(schema, files, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", schema)
    ds.append([{"sequence_id": one, "action": ACTION, "cam": FILMS[1]} for one in "ab"])
    ds.update([{"sequence_id": "a", "cam": sl.File(files["cam"])}])
    assert ds.sequence("a")["cam"].read() == FILMS[0]
    assert ds.sequence("b")["cam"].read() == FILMS[1]
    ds.upsert([{"sequence_id": "b", "photo": files["photo"]}, {"sequence_id": "c", "cam": FILMS[2]}])
    assert (ds.sequence("b")["photo"].read(), ds.sequence("c")["cam"].read()) == (PHOTOS[0], FILMS[2])
    kind = schema["sound"]
    ds.add_column("voice", kind.type if pa.types.is_binary(kind.arrow) else sl.Column("voice", STRUCT, kind.type))
    ds.update([{"sequence_id": "c", "voice": TONES[1]}])
    assert ds.sequence("c")["voice"].read() == TONES[1]
    assert ds.schema["voice"].type.get("inline") is True
    assert above_note(ds) == []
    assert not list((tmp_path / "ds").rglob("side*")), "files in rows lie in their shard, never beside it"


def test_frames_are_encoded_into_the_row_and_recorded(tmp_path) -> None:
    pictures = np.stack([clips.picture(step) for step in range(STEPS)])
    named, held = (
        sl.create(tmp_path / name, sl.Schema({**INLINE, "cam": sl.Video(fps=30, inline=name == "held")}))
        for name in ("named", "held")
    )
    for ds in (named, held):
        with ds.writer() as writer:
            writer.add("frames", action=ACTION, cam=pictures, photo=pictures[0])
            with writer.record("take", photo=PHOTOS[1]) as take:
                for step in range(STEPS):
                    take.add(action=ACTION[step], cam=pictures[step])
    for one in ("frames", "take"):
        assert held.sequence(one)["cam"].read() == named.sequence(one)["cam"].read()
        np.testing.assert_array_equal(held.sequence(one)["cam"][:], named.sequence(one)["cam"][:])
    np.testing.assert_array_equal(held.sequence("frames")["photo"][0], pictures[0])
    assert (held.files(), len(named.files())) == ([], 2)
    assert above_note(held) == []


def test_verbs_that_copy_keep_the_declaration(tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema(INLINE))
    ds.append([{"sequence_id": n, "action": ACTION, "cam": FILMS[at]} for at, n in enumerate("abc")])
    outs = {
        "repacked": sl.repack(ds, tmp_path / "repacked"),
        "archived": sl.repack(ds, tmp_path / "archived", layout="archive"),
        "subset": sl.subset(ds.where("sequence_id <> 'z'"), tmp_path / "subset"),
        "merged": sl.merge([ds.where("sequence_id = 'a'"), ds.where("sequence_id <> 'a'")], tmp_path / "merged"),
        "converted": sl.convert(ds, tmp_path / "converted", progress=False),
    }
    for name, out in outs.items():
        assert out.schema["cam"].type == INLINE["cam"], name
        assert [out.sequence(one)["cam"].read() for one in "abc"] == FILMS, name
    document = json.loads((tmp_path / "ds" / "mixtrain.json").read_text())
    assert document["column_types"]["cam"] == {"type": "video", "fps": 30, "inline": True}


def test_bytes_lie_raw_in_the_shard(tmp_path) -> None:
    """Compressed already: no codec and no dictionary of whole videos, and no reader but pyarrow is asked."""
    ds = sl.create(tmp_path / "ds", sl.Schema(INLINE))
    ds.append([{"sequence_id": "a", "action": ACTION, "cam": FILMS[0]}])
    (shard,) = (tmp_path / "ds" / "data").glob("*.parquet")
    group = pq.read_metadata(shard).row_group(0)
    (chunk,) = (one for one in map(group.column, range(group.num_columns)) if one.path_in_schema == "cam")
    assert (chunk.compression, chunk.has_dictionary_page, chunk.statistics) == ("UNCOMPRESSED", False, None)
    assert FILMS[0] in shard.read_bytes()
    assert pq.read_table(shard)["cam"].to_pylist() == [FILMS[0]]


def test_what_cannot_be_stored_is_refused_by_name(files, tmp_path, monkeypatch) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema(INLINE))
    for cam, error, said in (
        (str(files["cam"]), SchemaMismatchError, "sl.File"),
        ({"bytes": None, "path": "x.mp4"}, SchemaMismatchError, "x.mp4"),
        (sl.File(tmp_path / "none.mp4"), ValidationError, "none.mp4"),
        (tmp_path, ValidationError, "expected a file"),
        (7, SchemaMismatchError, "cam"),
    ):
        with pytest.raises(error, match=said):
            ds.append([{"sequence_id": "a", "action": ACTION, "cam": cam}])
    monkeypatch.setattr("seqlake.dataset.writing.copying.LARGEST_CELL", 100)
    with pytest.raises(ValidationError, match="1 GiB"):
        ds.append([{"sequence_id": "a", "action": ACTION, "cam": sl.File(files["cam"])}])
    assert len(sl.open(tmp_path / "ds")) == 0
    with pytest.raises(InvalidMetadataError):
        sl.Image(frames="bytes", inline=True)
    with pytest.raises(SchemaMismatchError, match="inline"):
        sl.create(tmp_path / "other", sl.Schema({"cam": sl.Column("cam", pa.string(), sl.Video(inline=True))}))


def test_any_medium_may_stand_in_the_rows(tmp_path) -> None:
    header = "ply\nformat ascii 1.0\nelement vertex 1\n" + "".join(f"property float {axis}\n" for axis in "xyz")
    cloud = f"{header}end_header\n1 2 3\n".encode()
    (tmp_path / "cloud.ply").write_bytes(cloud)
    kinds = {"scan": sl.Spatial3D(format="ply", inline=True), "body": sl.Spatial4D(format="npz", inline=True)}
    ds = sl.create(tmp_path / "ds", sl.Schema(kinds))
    ds.append([{"sequence_id": "a", "scan": sl.File(tmp_path / "cloud.ply"), "body": b"any"}])
    row = sl.open(tmp_path / "ds").sequence("a")
    assert (row["scan"].read(), row["body"].read()) == (cloud, b"any")
    assert row["scan"][0].tolist() == [(1, 2, 3)]
    assert above_note(ds) == []


def test_the_bytes_are_those_of_the_file(files, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema(INLINE))
    ds.append([{"sequence_id": "a", "action": ACTION, "cam": sl.File(files["cam"])}])
    row = ds.sequence("a")["cam"]
    assert hashlib.sha256(row.read()).digest() == hashlib.sha256(files["cam"].read_bytes()).digest()
    loaders = [
        sl.Loader(one, window={"action": range(2), "cam": range(3)}, batch_size=4, shuffle=False).frames()
        for one in (ds, _by_reference(files, tmp_path))
    ]
    for held, named in zip(*loaders, strict=True):
        for name in ("cam", "cam_mask", "action"):
            np.testing.assert_array_equal(held[name], named[name])


def _by_reference(files: dict[str, Path], tmp_path: Path) -> sl.Dataset:
    ds = sl.create(tmp_path / "named", sl.Schema({"cam": sl.Video(fps=30), "action": INLINE["action"]}))
    ds.append([{"sequence_id": "a", "action": ACTION, "cam": sl.File(files["cam"])}])
    return ds
