"""The same verbs on an object store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from seqlake.dataset import opening
from seqlake.dataset.reshaping.merging import repack
from seqlake.dataset.writing.ingest import File
from seqlake.errors import DatasetExistsError, DuplicateSequenceError, ValidationError
from seqlake.files.stores import open_store
from seqlake.spec.column_types import Trajectory, Video
from seqlake.spec.schema import Schema

if TYPE_CHECKING:
    from tests.conftest import Bucket

SCHEMA = Schema({"cam": Video(fps=30), "x": Trajectory(dim=2), "n": pa.int64()})


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"clip" * 1000)
    return path


def test_written_changed_discarded_and_copied(s3_bucket: Bucket, clip: Path, tmp_path: Path) -> None:
    storage = s3_bucket.storage
    ds = opening.create(f"{s3_bucket.uri}/arm", SCHEMA, storage=storage)
    with ds.writer(rows_per_shard=2) as writer:
        for number in range(5):
            writer.add(str(number), cam=File(clip), x=np.full((4, 2), number), n=number)
    listed = list(open_store(ds.location, storage=storage).list())

    with pytest.raises(ZeroDivisionError), ds.writer(rows_per_shard=1) as writer:
        writer.add("lost", cam=File(clip), n=1)
        1 / 0
    with pytest.raises(DuplicateSequenceError):
        ds.append([{"sequence_id": "3"}])
    assert list(open_store(ds.location, storage=storage).list()) == listed

    ds.add_column("label", pa.string(), values={"2": "x"})
    ds.update([{"sequence_id": "1", "n": 9, "label": "y"}])
    ds.delete(ids=["0"])
    found = {
        row["sequence_id"]: (row["n"], row["label"])
        for row in ds.select("sequence_id", "n", "label").to_arrow().to_pylist()
    }
    assert found == {"1": (9, "y"), "2": (2, "x"), "3": (3, None), "4": (4, None)}
    assert {f.code for f in ds.validate(depth="files").errors} == {"F409"}  # there, and no videos
    assert storage["secret_access_key"] not in repr(ds) + repr(ds.table)

    with pytest.raises(DatasetExistsError):
        repack(ds, ds.location, storage=storage)
    for out, options in ((f"{s3_bucket.uri}/out", storage), (tmp_path / "out", None)):
        made = repack(ds, out, storage=options)
        assert made.select("x", "n").to_arrow().equals(ds.select("x", "n").to_arrow())
        assert {f.code for f in made.validate(depth="files").errors} == {"F409"}
    copied = list((tmp_path / "out" / "files").rglob("*.mp4"))
    assert [path.read_bytes() for path in copied] == [clip.read_bytes()] * 4


def test_a_file_that_is_not_there_leaves_no_half_dataset(s3_bucket: Bucket) -> None:
    storage = s3_bucket.storage
    ds = opening.create(f"{s3_bucket.uri}/arm", SCHEMA, storage=storage)
    ds.append([{"sequence_id": "a", "cam": "files/none.mp4"}])
    with pytest.raises(ValidationError, match="'files/none.mp4' is not there"):
        repack(ds, f"{s3_bucket.uri}/out", storage=storage)
    assert not list(open_store(f"{s3_bucket.uri}/out", storage=storage).list())
