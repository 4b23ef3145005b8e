"""Receipts on disk: JSON both ways, and folders that are not ours."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqlake.errors import SeqlakeError
from seqlake.protocols import Copied, Transaction, Version, Written
from seqlake.receipts import WorkFolder, by_part, decode, encode

from .values import nested


@given(nested(st.times()))
def test_values_come_back(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_records_come_back():
    version = Version(id=3, time=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), operation="append", rows=7)
    written = Written(
        location="/x/part-0",
        rows=3,
        nbytes=100,
        partition={},
        statistics={
            "a": (1, 5, 0),
            "d": (date(2020, 1, 1), time(3), 1),
            "e": (Decimal("1.50"), timedelta(days=3, microseconds=1), 2),
            "f": (-math.inf, b"\x00\xff", 0),
        },
        ids=b"\x00\x01",
        index=b"",
        files=(Copied(path="files/a", size=3, sha256="00", packets={0: b"x"}),),
        references=(("s3://b/c", 4, "etag"),),
    )
    for record in (version, written, Transaction(id="0" * 32, parent=version)):
        assert decode(json.loads(json.dumps(encode(record)))) == record
    assert decode(encode({"part": np.int64(3), "written": [written]})) == {"part": 3, "written": [written]}


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="found object"):
        encode([object()])


def test_a_folder_is_for_one_conversion(tmp_path):
    folder = tmp_path / "work"
    work = WorkFolder(folder)
    assert not work.begun
    work.begin({"source": "a", "out": "x"})
    work.keep_state(None)
    work.keep(11, {"part": 11})
    work.keep(2, b"two")
    again = WorkFolder(folder)
    again.begin({"source": "a", "out": "x"})
    assert again.begun
    assert again.receipts() == {2: b"two", 11: {"part": 11}}
    with pytest.raises(SeqlakeError, match="another run: source differ"):
        again.begin({"source": "b", "out": "x"})
    again.clear()
    assert not folder.exists()


def test_a_file_of_others_stays_in_the_folder(tmp_path):
    mine = ["notes.txt", "part-1.json", "part-a.json", "part-00001.jsonl", "part-00001.json.gz", "part-00001.json.bak"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    work = WorkFolder(tmp_path)
    work.begin({})
    work.keep(3, "three")
    (tmp_path / "part-00004.json.tmp").write_text("{")
    assert work.receipts() == {3: "three"}
    work.clear()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(mine)


@pytest.mark.parametrize("text", ["{", '{"$": "Nothing", "value": 1}', '{"no": 1}'])
def test_a_damaged_receipt_is_an_error(tmp_path, text):
    work = WorkFolder(tmp_path)
    work.begin({})
    (tmp_path / "part-00000.json").write_text(text)
    with pytest.raises(SeqlakeError, match=r"part-00000\.json"):
        work.receipts()


def test_a_receipt_half_written_does_not_count(tmp_path):
    work = WorkFolder(tmp_path)
    work.begin({})
    (tmp_path / "part-00000.json.tmp").write_text("{")
    assert work.receipts() == {}


def test_receipts_by_part_are_whole_or_refused():
    assert by_part([]) == []
    assert by_part([{"part": 0, "n": 1}, {"part": 1}, {"part": 0, "n": 2}]) == [{"part": 0, "n": 2}, {"part": 1}]
    with pytest.raises(SeqlakeError, match=r"Parts \[0, 2\] have no receipt"):
        by_part([{"part": 3}, {"part": 1}])
    for wrong in (None, [], {"rows": 3}, {"part": "1"}):
        with pytest.raises(SeqlakeError, match="Expected receipts of a sink"):
            by_part([{"part": 0}, wrong])
