"""Tables that somebody sent: their own bytes choose neither the code that reads them nor whom is asked."""

from __future__ import annotations

import json
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

import seqlake as sl
from seqlake.errors import SeqlakeError, UnsafeReferenceError
from seqlake.files.stores import open_store, read_all

from .conftest import SCHEMA, rows


def newest(catalog: Path) -> str:
    """The table's metadata file, as its catalog names it."""
    with closing(sqlite3.connect(catalog)) as connection:
        [(location,)] = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    return location


def test_a_property_of_a_table_imports_nothing(dataset, address, tmp_path, monkeypatch) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sent_along.py").write_text(
        "from pyiceberg.io.pyarrow import PyArrowFileIO as IO\n"
    )  # a FileIO as good as any: only that it is imported tells
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    path = Path(newest(tmp_path / "warehouse" / "catalog.db").removeprefix("file://"))
    metadata = json.loads(path.read_text())
    metadata["properties"]["py-io-impl"] = "sent_along.IO"
    path.write_text(json.dumps(metadata))
    assert sl.open(address).to_arrow().num_rows == 10
    assert "sent_along" not in sys.modules


def test_a_property_of_a_table_sends_no_request_elsewhere(tmp_path, s3_bucket) -> None:
    storage = {**s3_bucket.storage, "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"{s3_bucket.uri}/w"}
    ds = sl.create("iceberg://lab/robots.episodes", SCHEMA, storage=storage)
    ds.append(rows(0, 4))
    location = newest(tmp_path / "c.db")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        store, name = open_store(s3_bucket.uri, storage=s3_bucket.storage), location.removeprefix(f"{s3_bucket.uri}/")
        metadata = json.loads(read_all(store.blob(name)))
        metadata["properties"]["s3.endpoint"] = f"http://127.0.0.1:{listener.getsockname()[1]}"
        store.put(name, json.dumps(metadata).encode())
        assert sl.open("iceberg://lab/robots.episodes", storage=storage).to_arrow().num_rows == 4
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize(
    ("elsewhere", "options"),
    [
        ("hdfs://127.0.0.1:1/x", {}),
        ("hf://datasets/x/y", {}),
        ("http://127.0.0.1:1/x", {}),
        ("s3://films/x", {"allow_buckets": []}),
    ],
)
def test_a_manifest_may_not_be_anywhere(dataset, address, tmp_path, elsewhere, options) -> None:
    path = Path(newest(tmp_path / "warehouse" / "catalog.db").removeprefix("file://"))
    metadata = json.loads(path.read_text())
    for one in metadata["snapshots"]:
        one["manifest-list"] = elsewhere
    path.write_text(json.dumps(metadata))
    with pytest.raises(UnsafeReferenceError):
        sl.open(address, **options).to_arrow()


def test_a_table_may_not_lie_in_a_bucket_that_may_not_be_named(dataset, address, tmp_path) -> None:
    path = Path(newest(tmp_path / "warehouse" / "catalog.db").removeprefix("file://"))
    metadata = json.loads(path.read_text())
    metadata["location"] = "s3://films/x"
    path.write_text(json.dumps(metadata))
    with pytest.raises(UnsafeReferenceError, match="allow_buckets"):
        sl.open(address, allow_buckets=[]).to_arrow()


@pytest.mark.parametrize("place", ["{}/elsewhere/v1.metadata.json", "9" * 300, "https://example.com/v1.metadata.json"])
def test_metadata_are_not_read_from_wherever_a_catalogs_row_says(dataset, address, tmp_path, place) -> None:
    """pyiceberg fetches them before anybody knows where the table lies."""
    (tmp_path / "elsewhere").mkdir(exist_ok=True)
    (tmp_path / "elsewhere" / "v1.metadata.json").write_text("{}")
    (catalog,) = tmp_path.rglob("catalog.db")
    with closing(sqlite3.connect(catalog)) as rows:
        rows.execute("UPDATE iceberg_tables SET metadata_location = ?", [place.format(tmp_path)])
        rows.commit()
    with pytest.raises(UnsafeReferenceError):
        sl.open(address)


def test_metadata_in_a_bucket_that_does_not_answer_are_told_in_our_words(dataset, address, tmp_path) -> None:
    (catalog,) = tmp_path.rglob("catalog.db")
    with closing(sqlite3.connect(catalog)) as rows:
        rows.execute("UPDATE iceberg_tables SET metadata_location = 's3://x/y.metadata.json'")
        rows.commit()
    storage = {"endpoint": "http://127.0.0.1:9", "access_key_id": "a", "secret_access_key": "b", "allow_http": "true"}
    with pytest.raises(SeqlakeError, match=r"cannot be read at s3://x/y.metadata.json"):
        sl.open(address, storage=storage)
