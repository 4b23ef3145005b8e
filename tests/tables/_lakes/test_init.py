"""Tables that other clients made become datasets: one commit sets the property, nothing is rewritten."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import DatasetExistsError, DatasetNotFoundError, DuplicateSequenceError, SchemaMismatchError
from seqlake.files.stores import open_store

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")


def rows(*ids):
    """Sequences as another client holds them."""
    return pa.table({
        "sequence_id": list(ids),
        "cam": [f"clips/{one}.mp4" for one in ids],
        "action": pa.array([[[1.0, 2.0]] * 3] * len(ids), pa.list_(pa.list_(pa.float32()))),
        "when": pa.array([1] * len(ids), pa.timestamp("us")),
        "price": pa.array([1] * len(ids), pa.int32()),
    })  # fmt: skip


class Delta:
    """Made by deltalake."""

    def __init__(self, folder):
        self.address = f"delta:{folder}/t"
        self.folder = Path(folder, "t")
        deltalake.write_deltalake(self.folder, rows("a", "b"))
        deltalake.write_deltalake(self.folder, rows("c"), mode="append")

    def native(self):
        return deltalake.DeltaTable(self.folder)

    def mixtrain(self):
        return self.native().metadata().configuration.get("mixtrain")

    def commits(self):
        return self.native().version()


class Iceberg:
    """Made by pyiceberg."""

    def __init__(self, folder):
        from pyiceberg.catalog.sql import SqlCatalog

        self.folder = Path(folder, "wh")
        self.folder.mkdir()
        self.address = f"iceberg:{self.folder}/robots.t"
        settings = {"uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}"}
        self.catalog = SqlCatalog("local", **settings)
        self.catalog.create_namespace("robots")
        table = self.catalog.create_table("robots.t", schema=rows("a").schema)
        table.append(rows("a", "b"))
        table.append(rows("c"))

    def native(self):
        return self.catalog.load_table("robots.t")

    def mixtrain(self):
        return self.native().properties.get("mixtrain")

    def commits(self):
        return len(self.native().snapshots())


class DuckLake:
    """Made here, its tag taken out of the catalog: another client's has none."""

    def __init__(self, folder):
        self.catalog = Path(folder, "meta.sqlite")
        self.folder = Path(f"{self.catalog}.files")
        self.address = f"ducklake:sqlite:{self.catalog}?table=t"
        ds = sl.create(self.address, sl.Schema.from_arrow(rows("a").schema))
        ds.append(rows("a", "b"))
        ds.append(rows("c"))
        self.ask("DELETE FROM ducklake_tag WHERE key = 'mixtrain'")

    def ask(self, sql):
        with sqlite3.connect(self.catalog) as connection:
            return connection.execute(sql).fetchall()

    def mixtrain(self):
        tags = self.ask("SELECT value FROM ducklake_tag WHERE key = 'mixtrain' AND end_snapshot IS NULL")
        return tags[0][0] if tags else None

    def commits(self):
        return self.ask("SELECT max(snapshot_id) FROM ducklake_snapshot")[0][0]


@pytest.fixture(params=[Delta, Iceberg, DuckLake])
def theirs(request, tmp_path):
    return request.param(tmp_path)


def places(theirs):
    """Every way to name it."""
    return [theirs.address, *([theirs.native()] if hasattr(theirs, "native") else [])]


def files(theirs):
    """The data files and their times."""
    return {path: path.stat().st_mtime_ns for path in theirs.folder.rglob("*.parquet")}


@pytest.mark.parametrize("way", [0, 1], ids=["address", "object"])
def test_a_table_becomes_a_dataset_in_one_commit(theirs, way):
    if way >= len(places(theirs)):
        pytest.skip("it has no object of its own")
    place = places(theirs)[way]
    before, commits, cells = files(theirs), theirs.commits(), sl.scan(place).to_arrow().to_pylist()
    proposed = sl.init(place, dry_run=True)
    assert {name: kind.type for name, kind in proposed.column_types.items()} == {"cam": "video", "action": "trajectory"}
    assert (theirs.mixtrain(), theirs.commits()) == (None, commits)
    written = sl.init(
        place, column_types={"cam": sl.Video(fps=30), "action": {"type": "trajectory", "dim": 2, "fps": 30}}
    )
    assert json.loads(theirs.mixtrain()) == json.loads(written.to_json())
    assert theirs.commits() == commits + 1
    assert files(theirs) == before
    ds = sl.open(places(theirs)[way])
    assert ds.schema["cam"].type.get("fps") == 30
    assert ds["a"]["action"].shape == (3, 2)
    assert ds.to_arrow().to_pylist() == cells
    assert not list(theirs.folder.rglob("mixtrain.json"))
    assert not {"M122", "M117"} & {finding.code for finding in ds.validate(depth="rows")}
    with pytest.raises(DatasetExistsError, match="property"):
        sl.init(place)
    ds.append([{"sequence_id": "d", "cam": None, "action": np.zeros((2, 2), np.float32)}])
    assert len(sl.open(theirs.address)) == 4
    assert ds.versions()[-2].operation == "metadata"


def test_a_table_without_types_becomes_one_too(theirs, tmp_path):
    """Nothing but ids: the property is set although no column has a type."""
    if isinstance(theirs, Delta):
        deltalake.write_deltalake(
            theirs.folder, pa.table({"sequence_id": ["x"]}), mode="overwrite", schema_mode="overwrite"
        )
        sl.init(theirs.address)
        assert json.loads(theirs.mixtrain())["mixtrain"] == "1.0"


def test_what_is_untyped_is_named(theirs, capsys):
    from seqlake.cli import main

    if isinstance(theirs, Iceberg):
        for place in places(theirs):
            with pytest.raises(DatasetNotFoundError, match=r"no property 'mixtrain'.*(?s:.*)sl\.init\("):
                sl.open(place)
        return
    findings = [finding for finding in sl.open(theirs.address).validate(depth="metadata") if finding.code == "M122"]
    assert ["untyped" in finding.message for finding in findings] == [True]
    with pytest.raises(SystemExit):
        main(["info", theirs.address])
    assert "untyped: the table" in capsys.readouterr().out
    sl.init(theirs.address)
    with pytest.raises(SystemExit):
        main(["info", theirs.address])
    assert "untyped: the table" not in capsys.readouterr().out


def test_what_cannot_be_a_dataset_is_refused_and_nothing_is_set(theirs):
    if not isinstance(theirs, Delta):
        return
    commits = theirs.commits()
    with pytest.raises(SchemaMismatchError, match="nobody"):
        sl.init(theirs.address, column_types={"nobody": sl.Video()})
    with pytest.raises(SchemaMismatchError):
        sl.init(theirs.address, column_types={"price": sl.Video()})
    deltalake.write_deltalake(theirs.folder, rows("a"), mode="append")
    with pytest.raises(DuplicateSequenceError, match="'a'"):
        sl.init(theirs.address)
    assert (theirs.mixtrain(), theirs.commits()) == (None, commits + 1)


def test_a_folder_with_a_delta_log_gets_no_file_of_ours(tmp_path):
    theirs = Delta(tmp_path)
    sl.init(theirs.folder)
    assert not Path(theirs.folder, "mixtrain.json").exists()
    assert theirs.mixtrain() is not None


def test_a_stray_file_beside_the_property_is_told(tmp_path):
    theirs = Delta(tmp_path)
    sl.init(theirs.folder)
    Path(theirs.folder, "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    assert "M117" in [finding.code for finding in sl.validate(theirs.folder)]


def test_a_delta_table_in_a_bucket(tmp_path, s3_bucket):
    """Whose log nothing but a look tells: neither init nor scan takes removed files for rows."""
    theirs = Delta(tmp_path)
    theirs.native().delete("sequence_id = 'a'")
    uri, storage = f"{s3_bucket.uri}/t", s3_bucket.storage
    store = open_store(uri, storage=storage)
    for path in theirs.folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(theirs.folder).as_posix(), path.read_bytes())
    assert sorted(sl.scan(uri, storage=storage).to_arrow()["sequence_id"].to_pylist()) == ["b", "c"]
    with pytest.raises(DatasetNotFoundError, match="Delta table"):
        sl.open(uri, storage=storage)
    sl.init(uri, storage=storage)
    assert "mixtrain.json" not in [path for path, _ in store.list()]
    assert sl.open(f"delta:{uri}", storage=storage).schema["cam"].type.type == "video"


def test_by_the_command(tmp_path, capsys, monkeypatch):
    from seqlake.cli import main
    from seqlake.dataset import opening

    theirs, looked, real = Delta(tmp_path), [], opening.lake_table
    monkeypatch.setattr(opening, "lake_table", lambda *place: (looked.append(place), real(*place))[1])
    for more, said in ((["--dry-run"], "Would write the table's property"), ([], "Wrote the table's property")):
        with pytest.raises(SystemExit) as ended:
            main(["init", theirs.address, "--type", 'cam={"type": "video", "fps": 10}', *more])
        assert ended.value.code == 0
        assert said in capsys.readouterr().out
        assert len(looked) == 1  # the lake is asked once
        looked.clear()
    assert json.loads(theirs.mixtrain())["column_types"]["cam"] == {"type": "video", "fps": 10}


def test_a_folder_as_ever(tmp_path):
    pq.write_table(rows("a"), tmp_path / "x.parquet")
    sl.init(tmp_path)
    assert Path(tmp_path, "mixtrain.json").exists()


JPEG, PNG, WEBP = (
    b"\xff\xd8\xff\xe0" + bytes(20),
    b"\x89PNG\r\n\x1a\n" + bytes(20),
    b"RIFF\x10\0\0\0WEBPVP8 " + bytes(9),
)
MP4, MKV = b"\0\0\0\x18ftypisom" + bytes(20), b"\x1a\x45\xdf\xa3" + bytes(20)
WAV, FLAC = b"RIFF\x10\0\0\0WAVEfmt " + bytes(9), b"fLaC" + bytes(20)
M4A = b"\0\0\0\x18ftypM4A " + bytes(20)
NAMED = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.parametrize("home", ["folder", "delta", "iceberg", "ducklake"])
@pytest.mark.parametrize("kind", [pa.binary(), NAMED], ids=["binary", "struct"])
def test_files_in_the_rows_are_known_by_their_first_bytes(home, kind, tmp_path):
    def cells(*files):
        return pa.array(files if kind == pa.binary() else [None if f is None else {"bytes": f} for f in files], kind)

    table = pa.table({
        "sequence_id": ["a", "b", "c"],
        "jpegs": cells(JPEG, None, JPEG),
        "pictures": cells(JPEG, PNG, WEBP),
        "clips": cells(MP4, MKV, None),
        "sounds": cells(WAV, FLAC, M4A),
        "mixed": cells(JPEG, WAV, JPEG),
        "partly": cells(JPEG, b"\x01\x02", b""),
        "noise": cells(b"\x01\x02", b"", b"RIFF"),
        "nothing": cells(None, None, None),
    })  # fmt: skip
    address = _in_home(home, tmp_path, table)
    with pytest.warns(UserWarning, match="holds files of different kinds") as said:
        guessed = sl.init(address, dry_run=True).column_types
    assert [str(one.message).split("'")[1] for one in said] == ["mixed", "partly"]
    assert "(audio, image)" in str(said[0].message)
    assert "(image, unknown)" in str(said[1].message)
    assert {name: kind.to_json() for name, kind in guessed.items()} == {
        "jpegs": {"type": "image", "format": "jpeg"},
        "pictures": {"type": "image"},
        "clips": {"type": "video"},
        "sounds": {"type": "audio"},
    }


def _in_home(home, folder, table):
    """The table as another client has it, with no word on what columns mean."""
    if home == "folder":
        pq.write_table(table, folder / "part-0.parquet")
        return folder
    if home == "delta":
        deltalake.write_deltalake(folder / "t", table)
        return f"delta:{folder}/t"
    if home == "ducklake":
        ds = sl.create(f"ducklake:sqlite:{folder}/meta.sqlite?table=t", sl.Schema.from_arrow(table.schema))
        ds.append(table)
        with sqlite3.connect(folder / "meta.sqlite") as connection:
            connection.execute("DELETE FROM ducklake_tag WHERE key = 'mixtrain'")
        return f"ducklake:sqlite:{folder}/meta.sqlite?table=t"
    theirs = Iceberg(folder)
    theirs.catalog.create_table("robots.inline", schema=table.schema).append(table)
    return f"iceberg:{theirs.folder}/robots.inline"


def test_names_count_where_only_they_stand_in_the_rows(tmp_path):
    cells = [{"bytes": None, "path": "a.png"}, {"bytes": JPEG, "path": "a.wav"}]
    pq.write_table(pa.table({"sequence_id": ["a", "b"], "photo": pa.array(cells, NAMED)}), tmp_path / "0.parquet")
    assert sl.init(tmp_path).column_types["photo"].to_json() == {"type": "image"}
    assert sl.open(tmp_path).schema["photo"].inline
