"""Shards in folders below `data/`, and columns that folders are named for: read as DuckDB, pyarrow and Polars do."""

from __future__ import annotations

import datetime as dt
import json
import os
import urllib.request
from pathlib import Path
from urllib.parse import quote

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.abilities import HasBounds, ability
from seqlake.dataset.reshaping import merging
from seqlake.errors import DamagedTableError, DatasetNotFoundError, ReadOnlyError, SchemaMismatchError
from seqlake.files.stores import open_store
from seqlake.tables import standalone
from seqlake.testing import oracle
from seqlake.versions import folders

NULL = folders.NULL
METADATA = {"mixtrain": "1.0", "column_types": {"action": {"type": "trajectory", "dim": 2}}}


def rows(*ids, **columns):
    """Some sequences, as another tool would hold them."""
    action = pa.array([[[float(n), 1.0]] * 3 for n in range(len(ids))], pa.list_(pa.list_(pa.float32(), 2)))
    more = {name: [value] * len(ids) for name, value in columns.items()}
    return pa.table({"sequence_id": list(ids), "action": action, "reward": [1.5] * len(ids), **more})


def put(root, path, table):
    """A file as another tool leaves it."""
    Path(root, path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, Path(root, path), compression="none")


def written(ds):
    """A sequence, by the writer."""
    with ds.writer() as writer:
        writer.add("new", action=np.zeros((2, 2), np.float32))


def declare(root, **types):
    """A `mixtrain.json`."""
    document = {**METADATA, "column_types": {**METADATA["column_types"], **types}}
    Path(root, "mixtrain.json").write_text(json.dumps(document))


@pytest.fixture
def root(tmp_path):
    """Two columns in folders, one of dates."""
    for day in ("2024-01-02", "2024-01-03"):
        for split in ("train", "val"):
            put(tmp_path, f"data/split={split}/day={day}/x.parquet", rows(f"{split} {day} a", f"{split} {day} b"))
    declare(tmp_path)
    return tmp_path


def by_duckdb(root, columns="sequence_id, split, day"):
    """What DuckDB reads."""
    query = f"SELECT {columns} FROM read_parquet('{root}/data/**/*.parquet', hive_partitioning=true) ORDER BY 1"
    return duckdb.sql(query).fetchall()


# ---- plain subfolders
def test_shards_in_folders_are_rows_like_all_others(tmp_path):
    put(tmp_path, "data/a.parquet", rows("a"))
    put(tmp_path, "data/day2/b.parquet", rows("b"))
    put(tmp_path, "data/day2/deeper/c.parquet", rows("c"))
    declare(tmp_path)
    ds = sl.open(tmp_path)
    assert sorted(ds.to_arrow()["sequence_id"].to_pylist()) == ["a", "b", "c"]
    assert ds.sql("SELECT count(*) FROM dataset").fetchall() == [(3,)]
    assert ds["b"]["action"].tolist() == [[0.0, 1.0]] * 3
    assert sl.validate(ds, depth="rows").ok
    assert not [f for f in sl.validate(ds) if f.code == "T503"]
    assert len(sl.scan(tmp_path)) == len(sl.scan(tmp_path / "data")) == 3
    sl.convert(ds, tmp_path.parent / "out")
    assert sorted(sl.open(tmp_path.parent / "out").to_arrow()["sequence_id"].to_pylist()) == ["a", "b", "c"]


@pytest.mark.parametrize("change", ["append", "delete", "adopt", "add_column", "writer"])
def test_writing_into_folders_is_refused_with_advice(root, change):
    ds = sl.open(root)
    calls = {
        "append": lambda: ds.append([{"sequence_id": "new", "action": np.zeros((2, 2), np.float32)}]),
        "delete": lambda: ds.delete("split = 'val'"),
        "adopt": ds.adopt,
        "add_column": lambda: ds.add_column("label", pa.string()),
        "writer": lambda: written(ds),
    }
    before = sorted(Path(root).rglob("*"))
    with pytest.raises(ReadOnlyError, match=r"data/split=train.*(?s:.*)repack"):
        calls[change]()
    assert sorted(Path(root).rglob("*")) == before


# ---- columns in folders
def test_a_folder_names_a_column_as_engines_read_it(root):
    ds = sl.open(root)
    assert ds.sql("SELECT sequence_id, split, day FROM dataset ORDER BY 1").fetchall() == by_duckdb(root)
    assert ds.schema.arrow.field("day").type == pa.date32()
    theirs = pl.scan_parquet(root / "data", hive_partitioning=True).sort("sequence_id").collect()
    ours = ds.to_arrow().sort_by("sequence_id")
    assert ours["split"].to_pylist() == theirs["split"].to_list()
    assert ours["day"].to_pylist() == theirs["day"].to_list()
    arrow = pyarrow.dataset.dataset(root / "data", partitioning="hive").to_table().sort_by("sequence_id")
    assert ours["split"].to_pylist() == arrow["split"].to_pylist()
    assert ds["val 2024-01-02 a"]["split"] == "val"
    assert sl.validate(ds).ok
    # The same of files that are no dataset.
    scanned = sl.scan(root / "data")
    assert scanned.to_arrow().sort_by("sequence_id")["day"].to_pylist() == ours["day"].to_pylist()


@pytest.mark.parametrize(
    "texts",
    [
        ["1", "2"],
        ["-7", "9223372036854775807"],
        ["9223372036854775808", "1"],
        ["007", "10"],
        ["+1", "2"],
        ["1_000", "2"],
        ["1", "b"],
        ["2024-02-29", "2024-03-01"],
        ["2024-02-29", "1"],
        ["1.5", "2.5"],
        ["true", "false"],
        ["", "a"],
        [NULL, "3"],
        [NULL, "x"],
        [NULL, NULL],
        [NULL, "2024-01-02"],
        ["a b/c", "50%=?#&"],
        ["a+b", "höhe"],
        ["2024-01-02 10:00:00", "2024-01-03 10:00:00"],
    ],
    ids=str,
)
def test_values_have_the_types_that_duckdb_gives_them(tmp_path, texts):
    for number, text in enumerate(texts):
        folder = text if text == NULL else quote(text, safe=" +")
        put(tmp_path, f"data/k={folder}/{number}.parquet", rows(f"e{number}"))
    declare(tmp_path)
    for source in (sl.open(tmp_path), sl.scan(tmp_path / "data")):
        ours = source.sql("SELECT sequence_id, k FROM dataset ORDER BY 1").fetchall()
        assert ours == by_duckdb(tmp_path, "sequence_id, k")


def test_of_a_column_that_two_folders_name_the_outer_counts_as_for_duckdb(tmp_path):
    place = tmp_path / "data/x=1/x=2"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"sequence_id": ["a"]}), place / "0.parquet")
    (tmp_path / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    theirs = duckdb.sql(
        f"SELECT x FROM read_parquet('{tmp_path}/data/**/*.parquet', hive_partitioning=true)"
    ).fetchall()
    assert [(row["x"],) for row in sl.open(tmp_path).to_arrow().to_pylist()] == theirs
    assert len(sl.open(tmp_path).where("x = 2")) == 0


def test_names_that_are_no_utf8(tmp_path):
    def dataset(name, folder):
        place = tmp_path / name / "data" / os.fsdecode(folder)
        place.mkdir(parents=True)
        pq.write_table(pa.table({"sequence_id": ["a"], "n": [7]}), tmp_path / name / "0.parquet")
        (tmp_path / name / "0.parquet").rename(place / "0.parquet")
        (tmp_path / name / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
        return tmp_path / name

    assert sl.open(dataset("escaped", b"a=%ff")).to_arrow()["a"].to_pylist() == ["%ff"]
    plain = sl.open(dataset("plain", b"\xff"))
    assert plain.to_arrow().to_pylist() == [{"sequence_id": "a", "n": 7}]
    assert plain.sql("SELECT n FROM dataset").fetchall() == [(7,)]
    with pytest.raises(SchemaMismatchError, match="its name is no UTF-8"):
        sl.open(dataset("column", b"a=\xff"))


def test_text_is_kept_where_it_could_not_be_had_back(tmp_path):
    """DuckDB reads `2024-1-2` as the date of the second; the folder's text would be lost."""
    put(tmp_path, "data/k=2024-1-2/x.parquet", rows("a"))
    declare(tmp_path)
    assert sl.open(tmp_path).to_arrow()["k"].to_pylist() == ["2024-1-2"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [("string", "7"), ("int32", 7), ("float64", 7.0), ("video", "7"), ("language", "7")],
)
def test_a_declared_type_wins(tmp_path, kind, value):
    put(tmp_path, "data/k=7/x.parquet", rows("a"))
    declare(tmp_path, k={"type": kind})
    assert sl.open(tmp_path).to_arrow()["k"].to_pylist() == [value]


def test_a_value_that_is_not_what_was_declared_is_an_error(tmp_path):
    put(tmp_path, "data/k=many/x.parquet", rows("a"))
    declare(tmp_path, k={"type": "int32"})
    with pytest.raises(SchemaMismatchError, match=r"'k' is declared as int32.*many"):
        sl.open(tmp_path)


def test_a_column_in_file_and_folder_has_the_folders_value_in_the_files_type(tmp_path):
    for number in (1, 2):
        put(tmp_path, f"data/k={number}/x.parquet", rows(f"e{number}", k=pa.scalar(number, pa.int16())))
    declare(tmp_path)
    ds = sl.open(tmp_path)
    assert ds.schema.arrow.field("k").type == pa.int16()
    assert ds.sql("SELECT sequence_id, k FROM dataset ORDER BY 1").fetchall() == by_duckdb(tmp_path, "sequence_id, k")
    assert len(ds.where("k = 2")) == 1


def test_where_file_and_folder_disagree_the_folder_counts_as_for_engines(tmp_path):
    put(tmp_path, "data/k=1/x.parquet", rows("a", k="of the file"))
    put(tmp_path, "data/k=2/x.parquet", rows("b", k="of the file"))
    declare(tmp_path)
    for source in (sl.open(tmp_path), sl.scan(tmp_path / "data")):
        for query in ("SELECT sequence_id, k FROM dataset ORDER BY 1", "SELECT sequence_id, k, action FROM dataset"):
            assert [row[:2] for row in source.sql(query).fetchall()] == [("a", "1"), ("b", "2")]
        assert source.to_arrow()["k"].to_pylist() == ["1", "2"]
    assert by_duckdb(tmp_path, "sequence_id, k") == [("a", 1), ("b", 2)]


def test_a_file_in_no_such_folder_has_null(tmp_path):
    put(tmp_path, "data/k=1/x.parquet", rows("a"))
    put(tmp_path, "data/y.parquet", rows("b"))
    declare(tmp_path)
    theirs = pyarrow.dataset.dataset(tmp_path / "data", partitioning="hive").to_table().sort_by("sequence_id")
    ours = sl.open(tmp_path).to_arrow().sort_by("sequence_id")
    assert ours["k"].to_pylist() == theirs["k"].to_pylist() == [1, None]


def test_ids_may_stand_in_folders(tmp_path):
    for number in (1, 2):
        put(tmp_path, f"data/sequence_id={number}/x.parquet", rows("x").drop_columns(["sequence_id"]))
    declare(tmp_path)
    ds = sl.open(tmp_path)
    assert ds.to_arrow()["sequence_id"].to_pylist() == ["1", "2"]
    assert ds["2"]["reward"] == 1.5
    assert sl.validate(ds).ok


def test_folders_that_engines_pass_over_are_passed_over(root):
    expected = {row[0] for row in by_duckdb(root, "sequence_id")}
    for folder in ("_temporary/0/split=val/day=2024-01-09", ".tmp/split=val", "split=val/_spark", "split=val/.h"):
        put(root, f"data/{folder}/y.parquet", rows("half written"))
    put(root, "data/_part=7/split=val/day=2024-01-02/y.parquet", rows("whole"))
    Path(root, "data/_SUCCESS").touch()
    Path(root, "data/split=val/.y.parquet.crc").touch()
    ds = sl.open(root)
    assert set(ds.to_arrow()["sequence_id"].to_pylist()) == expected | {"whole"}
    assert ds["whole"]["_part"] == 7
    assert not [f for f in sl.validate(ds) if f.code == "T503"]


def test_a_condition_opens_only_the_folders_that_may_hold_rows(root):
    ds = sl.open(root)
    known = ability(standalone.open(root).snapshot(), HasBounds)
    assert known is not None
    assert known.bounds("split") == [("train", "train"), ("train", "train"), ("val", "val"), ("val", "val")]
    assert known.bounds("reward") == [None] * 4
    # Files that nobody may open, had they to be opened: their bytes are gone, their names and sizes stay.
    chosen = ds.where("split = 'val' AND day > DATE '2024-01-02'")
    for path in Path(root, "data").rglob("*.parquet"):
        if "split=val/day=2024-01-03" not in path.as_posix():
            path.write_bytes(b"\0" * path.stat().st_size)
    assert sorted(chosen.to_arrow()["sequence_id"].to_pylist()) == ["val 2024-01-03 a", "val 2024-01-03 b"]
    query = "SELECT sequence_id FROM dataset WHERE split = 'val' AND day = DATE '2024-01-03' ORDER BY 1"
    assert ds.sql(query).fetchall() == [("val 2024-01-03 a",), ("val 2024-01-03 b",)]


def test_the_column_goes_with_the_rows(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    expected = by_duckdb(root)
    query = "SELECT sequence_id, split, day FROM dataset ORDER BY 1"
    for place in (out / "copy", f"delta:{out}/lake"):
        sl.convert(root, place)
        assert sl.open(place).sql(query).fetchall() == expected
    merging.repack(sl.open(root), out / "repacked")
    assert sl.open(out / "repacked").sql(query).fetchall() == expected
    merging.subset(sl.open(root).where("split = 'val'"), out / "subset")
    assert len(sl.open(out / "subset")) == 4
    assert sl.open(out / "subset").to_arrow()["split"].unique().to_pylist() == ["val"]
    theirs = duckdb.sql(f"SELECT sequence_id, split, day FROM read_parquet('{out}/copy/data/*.parquet') ORDER BY 1")
    assert theirs.fetchall() == expected
    ds = sl.create(out / "appended", sl.open(root).schema)
    ds.append(sl.open(root))
    assert sl.open(out / "appended").sql(query).fetchall() == expected


def test_rows_of_the_loader_have_the_column(root):
    part = sl.Loader(sl.open(root).where("split = 'val'"), window={"action": range(2)}, batch_size=3)
    assert [batch["action"].shape for batch in part] == [(3, 2, 2)] * (len(part))
    batch = next(iter(sl.Loader(sl.open(root).select("split", "day"), window=None, batch_size=8)))
    assert sorted(batch["split"]) == ["train"] * 4 + ["val"] * 4


def test_it_becomes_a_dataset_by_init(root):
    Path(root, "mixtrain.json").unlink()
    types = sl.init(root).column_types
    assert set(types) == {"action"}
    assert sl.open(root).sql("SELECT sequence_id, split, day FROM dataset ORDER BY 1").fetchall() == by_duckdb(root)


@pytest.mark.parametrize("writer", ["duckdb", "pyarrow", "polars"])
def test_what_engines_write(tmp_path, writer):
    table = pa.table(
        {
            "sequence_id": [f"e{n}" for n in range(6)],
            "action": rows(*"abcdef")["action"],
            "task": ["pick up", "a/b=c", None, "50%", "pick up", "ä"],
            "shift": [1, 2, 2, 1, 1, 2],
        }
    )
    data = tmp_path / "data"
    if writer == "duckdb":
        options = "FORMAT parquet, PARTITION_BY (task, shift)"
        duckdb.from_arrow(table).query("rows", f"COPY (SELECT * FROM rows) TO '{data}' ({options})")
    elif writer == "pyarrow":
        pyarrow.dataset.write_dataset(
            table, data, format="parquet", partitioning_flavor="hive", partitioning=["task", "shift"]
        )
    else:
        pl.from_arrow(table).write_parquet(data, partition_by=["task", "shift"])
    declare(tmp_path)
    ours = sl.open(tmp_path).to_arrow().sort_by("sequence_id")
    assert ours["task"].to_pylist() == table["task"].to_pylist()
    assert ours["shift"].to_pylist() == table["shift"].to_pylist()
    assert sl.validate(tmp_path, depth="rows").ok


def test_a_bucket(root, s3_bucket):
    store = open_store(f"{s3_bucket.uri}/set", storage=s3_bucket.storage)
    for path in Path(root).rglob("*"):
        if path.is_file():
            store.put(path.relative_to(root).as_posix(), path.read_bytes())
    ds = sl.open(f"{s3_bucket.uri}/set", storage=s3_bucket.storage)
    assert ds.sql("SELECT sequence_id, split, day FROM dataset ORDER BY 1").fetchall() == by_duckdb(root)
    assert len(ds.where("day = DATE '2024-01-03'")) == 4
    with pytest.raises(ReadOnlyError, match="repack"):
        ds.delete("split = 'val'")
    assert len(sl.scan(f"{s3_bucket.uri}/set/data", storage=s3_bucket.storage)) == 8


# ---- what is not read is told
def test_what_is_not_read_is_told(root):
    put(root, "elsewhere/z.parquet", rows("z"))
    put(root, "inner/data/i.parquet", rows("i"))
    Path(root, "inner/mixtrain.json").write_text(json.dumps(METADATA))
    put(root, "files/cam/f.parquet", rows("f"))
    Path(root, "data/split=val/b.parq").write_bytes(b"?")
    Path(root, "data/c.csv").write_bytes(b"?")
    found = {f.location for f in sl.validate(root) if f.code == "T503"}
    assert found == {"elsewhere/z.parquet", "data/split=val/b.parq", "data/c.csv"}
    assert "z" not in sl.open(root)


def test_strangers_in_folders_are_told_and_not_adopted(tmp_path):
    ds = sl.create(tmp_path / "ds", sl.Schema({"action": sl.Trajectory(dim=2)}))
    ds.append([{"sequence_id": "a", "action": np.zeros((2, 2), np.float32)}])
    put(tmp_path / "ds", "data/day2/b.parquet", rows("b"))
    put(tmp_path / "ds", "c.parquet", rows("c"))
    found = {f.location for f in sl.validate(tmp_path / "ds") if f.code == "T503"}
    assert found == {"data/day2/b.parquet", "c.parquet"}
    with pytest.raises(ReadOnlyError, match=r"data/day2/b\.parquet"):
        sl.open(tmp_path / "ds").adopt()
    assert len(sl.open(tmp_path / "ds")) == 1


# ---- files at the root
def test_files_at_the_root_move_into_data_when_they_are_adopted(tmp_path):
    put(tmp_path, "one.parquet", rows("a", "b"))
    put(tmp_path, "two.parquet", rows("c"))
    declare(tmp_path)
    before = sl.open(tmp_path).to_arrow()
    with pytest.raises(ReadOnlyError, match="seqlake adopt"):
        sl.open(tmp_path).delete("sequence_id = 'a'")
    assert Path(tmp_path, "one.parquet").exists()
    ds = sl.open(tmp_path)
    assert (ds.adopt().operation, ds.adopt().rows) == ("adopt", 3)
    assert not list(tmp_path.glob("*.parquet"))
    assert duckdb.sql(f"SELECT sequence_id FROM '{tmp_path}/data/*.parquet' ORDER BY 1").fetchall() == [
        ("a",), ("b",), ("c",),
    ]  # fmt: skip
    ds = sl.open(tmp_path)
    assert ds.to_arrow().equals(before)
    ds.append([{"sequence_id": "d", "action": np.zeros((2, 2), np.float32), "reward": 0.0}])
    ds.delete("sequence_id = 'a'")
    assert sl.validate(ds).ok
    oracle.check(standalone.open(tmp_path).store, oracle.Expected())
    # What lies there without our log says the same.
    Path(tmp_path, "_seqlake").rename(tmp_path.parent / "log")
    assert sorted(sl.open(tmp_path).to_arrow()["sequence_id"].to_pylist()) == ["b", "c", "d"]


ODD = [
    "a", "b c", "é", "x=y", "50%", "a%20b", "a%2Fb", "%", "%zz", "%E4", "it's", "", "#?&+*[1]", NULL, "..dots", " ",
    "+", "~", "日本", '"',
]  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("escaped", [True, False])
def test_a_folder_in_a_bucket_says_what_it_says_on_disk(escaped, tmp_path, s3_bucket):
    """Names of any kind, keys that consoles leave for folders, and a file that comes between two looks."""
    address, storage = f"{s3_bucket.uri}/odd", s3_bucket.storage
    store = open_store(address, storage=storage)
    for number, value in enumerate(ODD):
        name = quote(value, safe="") if escaped and value != NULL else value
        put(tmp_path, f"data/p={name}/k={number % 3}/{number}.parquet", rows(f"ep {number}"))
    declare(tmp_path)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        store.put(path.relative_to(tmp_path).as_posix(), path)
    for key in ("data/", "data/p=a/", "data/p=gone/k=1/"):
        url = f"{storage['endpoint']}/{s3_bucket.uri.removeprefix('s3://')}/odd/{quote(key)}"
        urllib.request.urlopen(urllib.request.Request(url, b"", method="PUT"), timeout=10).close()
    query = "SELECT sequence_id, p, k FROM dataset ORDER BY 1"
    here, there = sl.open(tmp_path), sl.open(address, storage=storage)
    assert (
        there.sql(query).fetchall()
        == here.sql(query).fetchall()
        == sl.scan(address, storage=storage).sql(query).fetchall()
    )
    if escaped:
        assert {p for _, p, _ in there.sql(query).fetchall()} == {None, *ODD} - {NULL}
    put(tmp_path, "late.parquet", rows("late"))
    store.put("data/p=a/k=0/late.parquet", tmp_path / "late.parquet")
    assert len(there.to_arrow()) == len(ODD)  # as it was opened
    assert len(sl.open(address, storage=storage)) == len(ODD) + 1
    store.delete(["data/p=a/k=0/late.parquet", "data/p=a/k=0/0.parquet"])
    with pytest.raises(
        DamagedTableError, match=r"it held data/p=a/k=0/0\.parquet .* found nowhere\. Open the folder again"
    ):
        there.to_arrow()


def test_files_at_the_root_of_a_bucket(tmp_path, s3_bucket):
    put(tmp_path, "one.parquet", rows("a", "b"))
    declare(tmp_path)
    store = open_store(f"{s3_bucket.uri}/flat", storage=s3_bucket.storage)
    for path in tmp_path.iterdir():
        store.put(path.name, path.read_bytes())
    ds = sl.open(f"{s3_bucket.uri}/flat", storage=s3_bucket.storage)
    assert ds.adopt().rows == 2
    assert not [path for path, _ in store.list() if path.endswith(".parquet") and "/" not in path]
    assert len(sl.open(f"{s3_bucket.uri}/flat", storage=s3_bucket.storage)) == 2


def test_an_adoption_of_the_root_that_fails_leaves_everything(tmp_path):
    put(tmp_path, "one.parquet", rows("a"))
    put(tmp_path, "two.parquet", rows("a"))
    declare(tmp_path)
    with pytest.raises(sl.errors.ValidationError, match="'a'"):
        sl.open(tmp_path).adopt()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "mixtrain.json", "one.parquet", "two.parquet",
    ]  # fmt: skip


def test_links_at_the_root_do_not_move(tmp_path):
    put(tmp_path, "elsewhere/one.parquet", rows("a"))
    root = tmp_path / "ds"
    root.mkdir()
    Path(root, "one.parquet").symlink_to("../elsewhere/one.parquet")
    declare(root)
    with pytest.raises((ReadOnlyError, sl.errors.UnsafeReferenceError)):
        sl.open(root).adopt()
    assert Path(root, "one.parquet").is_symlink()


def test_values_are_days_not_times():
    """A date is one of `datetime.date`, as DuckDB gives it."""
    _, values = folders.with_folders(pa.schema([]), ["day=2024-01-02/x.parquet"], {})
    assert values["day"].to_pylist() == [dt.date(2024, 1, 2)]


# ---- one partition
@pytest.mark.parametrize("home", ["folders", "files", "delta"])
def test_only_the_files_of_a_partition_are_opened(home, root):
    if home == "delta":
        deltalake = pytest.importorskip("deltalake")
        both = pa.concat_tables([rows("a", "b", split="train"), rows("c", "d", split="val")])
        deltalake.write_deltalake(str(root / "lake"), both, partition_by=["split"])
        place = root / "lake"
        sl.init(f"delta:{place}", column_types={"action": sl.Trajectory(dim=2)})
        ds = sl.open(f"delta:{place}")
    else:
        place = root
        ds = sl.open(root) if home == "folders" else sl.scan(root / "data")
    wanted = ds.where("split = 'val'")
    for path in sorted(place.rglob("split=train/**/*.parquet")):
        path.unlink()  # whoever opens it fails
    loader = sl.Loader(wanted, window={"action": range(2)}, batch_size=2, shuffle=False)
    assert sum(len(batch["action"]) for batch in loader) == 3 * len(wanted)
    assert wanted.lengths("action").tolist() == [3] * len(wanted)


# ---- tables of others in the folder
def delta(folder):
    """Two files, one of which the log removed."""
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(folder, rows("gone").drop_columns(["action"]))
    deltalake.write_deltalake(folder, rows("here").drop_columns(["action"]), mode="overwrite")


def iceberg(folder):
    """As an engine without a catalog leaves it: `data/` and `metadata/`."""
    put(folder, "data/a.parquet", rows("gone"))
    Path(folder, "metadata").mkdir()
    Path(folder, "metadata/v1.metadata.json").write_text("{}")


def ducklake(folder):
    """By DuckLake's names; the catalog is elsewhere."""
    put(folder, "main/t/ducklake-0199aa00-8a7b-7c3e-8a51-aaaaaaaaaaaa.parquet", rows("gone"))


def lance(folder):
    """A Lance dataset, one of whose rows is deleted."""
    ds = pytest.importorskip("lance").write_dataset(rows("gone", "here"), folder)
    ds.delete("sequence_id = 'gone'")


@pytest.mark.sampled
@pytest.mark.parametrize("typed", [True, False], ids=["typed", "untyped"])
@pytest.mark.parametrize(
    ("make", "where", "advice"),
    [
        (delta, "data", "delta:{root}/data"),
        (delta, "data/split=val", "delta:{root}/data/split=val"),
        (delta, "inner", "delta:{root}/inner"),
        (iceberg, "data", "iceberg://"),
        (iceberg, "data/inner/split=val", "iceberg://"),
        (iceberg, "", "iceberg://"),
        (ducklake, "data", "ducklake:"),
        (ducklake, "", "ducklake:"),
        (lance, "x.lance", "sl.open('lance:{root}/x.lance')"),
        (lance, "data/x.lance", "sl.open('lance:{root}/data/x.lance')"),
        (lance, "", "sl.open('lance:{root}')"),
    ],
)
def test_files_of_a_lakes_table_are_not_read_as_plain_ones(tmp_path, s3_bucket, make, where, advice, typed):
    root = tmp_path / "set"
    make(root / where)
    if typed:
        declare(root)
    store = open_store(f"{s3_bucket.uri}/set", storage=s3_bucket.storage)
    for path in Path(root).rglob("*"):
        if path.is_file():
            store.put(path.relative_to(root).as_posix(), path.read_bytes())
    before = sorted(root.rglob("*"))
    for place, storage in ((str(root), None), (f"{s3_bucket.uri}/set", s3_bucket.storage)):
        for act in (sl.open, sl.scan, sl.init, sl.validate):
            if typed and act is sl.init:
                continue  # there is a mixtrain.json already
            untyped = "Parquet|are a table of Lance" if where else "is a Lance dataset"
            says = "are a table of" if typed or make is not lance else untyped
            with pytest.raises(DatasetNotFoundError, match=says) as caught:
                act(place, storage=storage)
            assert (
                says == "Parquet|are a table of Lance"
                or advice.format(root=place) in f"{caught.value} {caught.value.hint}"
            )
    assert sorted(root.rglob("*")) == before


def test_a_table_beside_the_data_is_no_reason(tmp_path):
    """Only files that would be read count."""
    put(tmp_path, "data/a.parquet", rows("a"))
    declare(tmp_path)
    delta(tmp_path / "other")
    delta(tmp_path / "data/_hidden")
    lance(tmp_path / "x.lance")
    assert len(sl.open(tmp_path)) == 1


# ---- files that contradict their folder
def test_a_file_that_contradicts_its_folder_is_told(tmp_path):
    put(tmp_path, "data/k=1/split=val/x.parquet", rows("a", k=1, split="train"))
    put(tmp_path, "data/k=1/split=train/x.parquet", rows("b", k=1, split="train"))
    put(tmp_path, f"data/k={NULL}/split=val/x.parquet", rows("c", k=2, split="val"))
    declare(tmp_path)
    expected = {
        ("split=val/x.parquet", "split is 'train' in the file, 'val' by its folder, which counts"),
        (f"k={NULL}/split=val/x.parquet", "k is 2 in the file, None by its folder, which counts"),
    }
    for source in (sl.open(tmp_path), sl.scan(tmp_path)):
        assert source.sql("SELECT sequence_id, k, split FROM dataset ORDER BY 1").fetchall() == by_duckdb(
            tmp_path, "sequence_id, k, split"
        )
        found = [finding for finding in sl.validate(source, depth="rows") if finding.code == "T516"]
        assert {(f.location.removeprefix("data/").removeprefix("k=1/"), f.message) for f in found} == expected
        assert len(found) == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", pa.scalar(7, pa.int16())),
        ("007", pa.scalar("007")),
        ("1.5", pa.scalar(1.5)),
        ("nan", pa.scalar(float("nan"))),
        ("true", pa.scalar(True)),
        ("2024-01-02", pa.scalar(dt.date(2024, 1, 2))),
        ("2024-01-02", pa.scalar("2024-01-02")),
        ("2024-01-02 10%3A00%3A00", pa.scalar(dt.datetime(2024, 1, 2, 10))),
        (NULL, pa.scalar(None, pa.string())),
        ("a%2Fb", pa.scalar("a/b").cast(pa.dictionary(pa.int8(), pa.string()))),
    ],
)
def test_a_file_that_says_what_its_folder_says_is_not(tmp_path, text, value):
    put(tmp_path, f"data/k={text}/x.parquet", rows("a", k=value))
    declare(tmp_path)
    for source in (sl.open(tmp_path), sl.scan(tmp_path)):
        assert "T516" not in [finding.code for finding in sl.validate(source, depth="rows")]


# ---- what an adoption would do
def test_a_dry_run_says_what_becomes_of_a_plain_folder(root, tmp_path_factory, capsys):
    from seqlake.cli import main

    def adopt(place, *, code=0):
        with pytest.raises(SystemExit) as ended:
            main(["adopt", str(place), "--dry-run"])
        assert ended.value.code == code
        return "".join(capsys.readouterr())

    flat = tmp_path_factory.mktemp("flat")
    put(flat, "a.parquet", rows("a"))
    put(flat, "b.parquet", rows("b"))
    declare(flat)
    assert "versioned dataset of 2 shards; they move into data/." in adopt(flat)
    assert not Path(flat, "_seqlake").exists()
    inner = tmp_path_factory.mktemp("inner")
    put(inner, "data/a.parquet", rows("a"))
    declare(inner)
    assert "versioned dataset of 1 shards." in adopt(inner)
    assert "repack" in adopt(root, code=1)
    sl.open(inner).adopt()
    assert "Would take in 0 shards." in adopt(inner)
    lake = f"delta:{tmp_path_factory.mktemp('lake')}/t"
    sl.create(lake, {"n": pa.int64()})
    assert "Would take in 0 shards." in adopt(lake)
