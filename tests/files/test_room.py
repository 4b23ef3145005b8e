"""A full disk is one error, whoever met it; an error that only quotes such words is none."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.errors import CommitUnknownError, CorruptFileError, DiskFullError, SeqlakeError
from seqlake.files.room import room_in, without_room
from seqlake.training.bad_data.damage import is_damage

WORDS = ["No space left on device", "database or disk is full", "Disk quota exceeded"]
GROWS = ["PRAGMA max_page_count = 3", "CREATE TABLE t (x)", "INSERT INTO t VALUES (randomblob(100000))"]


def raised(call):
    """The error that a call ends with."""
    with pytest.raises(Exception) as error:
        call()
    return error.value


def as_one(error):
    """What room_in makes of an error."""
    with room_in("data/arm"):
        raise error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
@pytest.mark.parametrize("writer", ["python", "pyarrow", "duckdb"])
def test_a_device_without_room(tmp_path, writer):
    full = tmp_path / "full"
    full.symlink_to("/dev/full")  # a name of its own: Arrow removes what it could not write

    def write():
        if writer == "python":
            full.write_bytes(b"x" * 100_000)
        elif writer == "pyarrow":
            pq.write_table(pa.table({"x": range(100_000)}), full)
        else:
            pytest.importorskip("duckdb").sql(f"COPY (SELECT range FROM range(1000000)) TO '{full}' (FORMAT csv)")

    error = raised(lambda: as_one(raised(write)))
    assert isinstance(error, DiskFullError)
    assert error.errno == errno.ENOSPC


def test_databases_that_may_not_grow():
    """SQLite's own limit ends as a full disk does, and SQLAlchemy wraps it."""

    def plainly():
        connection = sqlite3.connect(":memory:")
        try:
            for one in GROWS:
                connection.execute(one)
        finally:
            connection.close()

    def wrapped():
        engine = pytest.importorskip("sqlalchemy").create_engine("sqlite://")
        try:
            with engine.begin() as connection:
                for one in GROWS:
                    connection.exec_driver_sql(one)
        finally:
            engine.dispose()

    for call in (plainly, wrapped):
        assert without_room(raised(call)) == errno.ENOSPC


def test_what_an_error_was_raised_from_counts():
    quota = OSError(errno.EDQUOT, "Disk quota exceeded")
    first = SeqlakeError("the transaction failed", hint="look")
    first.__cause__ = quota
    error = raised(lambda: as_one(first))
    assert (type(error), error.errno, error.hint) == (DiskFullError, errno.EDQUOT, "look")
    unknown = CommitUnknownError("no answer")
    unknown.__cause__ = quota
    assert raised(lambda: as_one(unknown)) is unknown


def test_an_error_that_was_raised_from_itself():
    """Its chain of causes has no end."""
    own, other = OSError(errno.EIO, "one"), CorruptFileError("other")
    own.__cause__ = own
    other.__cause__, other.__context__ = None, other
    assert without_room(own) is None
    assert raised(lambda: as_one(own)) is own
    assert is_damage(other)
    ring = OSError(errno.EDQUOT, "last")
    ring.__cause__ = SeqlakeError("first")
    ring.__cause__.__cause__ = ring
    assert without_room(ring.__cause__) == errno.EDQUOT


@pytest.mark.parametrize("words", WORDS)
def test_an_error_that_quotes_the_words_is_itself(words, tmp_path):
    """A value, a table, a file and a message may all be called so."""
    duckdb = pytest.importorskip("duckdb")
    memory, named = sqlite3.connect(":memory:"), f"x: {words}"
    calls = [
        (tmp_path / named).read_bytes,
        lambda: pq.read_table(tmp_path / named),
        lambda: int(words),
        lambda: memory.execute(f'SELECT * FROM "{named}"'),
        lambda: duckdb.sql(f"SELECT '{named}'::INT").fetchall(),
        lambda: duckdb.sql(f"SELECT * FROM read_csv('{tmp_path / named}')"),
        lambda: duckdb.sql(f"SELECT error('{named}')").fetchall(),
    ]
    errors = [*map(raised, calls), SeqlakeError(named), OSError(errno.EIO, named), RuntimeError(named)]
    memory.close()
    for error in errors:
        assert without_room(error) is None, error
        assert raised(lambda error=error: as_one(error)) is error


def test_the_lakes_log_that_hides_the_number(tmp_path):
    """Rust's words stand at the end; a path that has them is a path."""
    deltalake = pytest.importorskip("deltalake")
    path = tmp_path / f"x: {WORDS[0]}"
    assert without_room(raised(lambda: deltalake.DeltaTable(path))) is None
    hidden = deltalake.exceptions.DeltaError(f"Generic LocalFileSystem error: Unable to copy: {WORDS[0]} (os error 28)")
    assert without_room(hidden) == errno.ENOSPC
    arrow = "\x1b[31m\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}\x1b[0m"
    text = f"Generic LocalFileSystem error\n  {arrow} Unable to copy\n    {arrow} {WORDS[0]} (os error 28)\n"
    assert without_room(OSError(text)) == errno.ENOSPC
    assert without_room(OSError(f"{text} is in x: not found (os error 2)")) is None
