"""The outside truth: DuckDB's own ducklake extension, and a PostgreSQL server of our own on loopback."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest


def extension(name):
    """The file of an extension for this DuckDB; None where no wheel brought it."""
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0], "extensions", f"v{duckdb.__version__}")
    path = folder / f"{name}.duckdb_extension"
    return path if path.exists() else None


class Engine:
    """DuckDB with the lake attached, closed between questions so that a DuckDB file is free for others."""

    def __init__(self, location, *, secret=""):
        self.location = location
        self.target = location.removeprefix("ducklake:").rpartition("?")[0]
        name = location.rpartition("table=")[2].partition("&")[0]
        self.name = name if "." in name else f"main.{name}"
        self.secret = secret

    def run(self, *statements, options=""):
        """What the last statement gives."""
        return self.each(*statements, options=options)[-1]

    def each(self, *statements, options=""):
        """What each statement gives, in one session."""
        with self.opened(options=options) as connection:
            return [connection.execute(one).to_arrow_table().to_pylist() for one in statements]

    @contextmanager
    def opened(self, *, options=""):
        """A session with the lake attached."""
        connection = duckdb.connect(":memory:")
        try:
            names = ["ducklake", *(["httpfs"] if self.secret else [])]
            names += [f"{kind}_scanner" for kind in ("sqlite", "postgres") if self.target.startswith(kind)]
            for one in names:
                connection.execute(f"LOAD '{extension(one)}'")
            connection.execute("SET TimeZone = 'UTC'")
            if self.secret:
                connection.execute(self.secret)
            connection.execute(f"ATTACH 'ducklake:{self.target}' AS lake" + (f" ({options})" if options else ""))
            connection.execute("USE lake")
            yield connection
        finally:
            connection.close()

    def rows(self):
        """All rows by id, as the engine reads them now."""
        return by_id(self.run(f"SELECT * FROM {self.name}"))

    def rows_at(self, versions):
        """[versions] all rows by id, as the engine reads them."""
        return [
            by_id(found) for found in self.each(*(f"SELECT * FROM {self.name} AT (VERSION => {v})" for v in versions))
        ]


def by_id(rows):
    found = {row["sequence_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture
def engine():
    """`engine(location)`: the lake as DuckDB's own extension sees it."""
    if extension("ducklake") is None:
        pytest.skip(f"no ducklake extension for DuckDB {duckdb.__version__} is installed")
    return Engine


@pytest.fixture(scope="session")
def postgres():
    """The connection string of a server that lives as long as the tests."""
    pytest.importorskip("psycopg")
    missing = [name for name in ("initdb", "postgres") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no PostgreSQL here: {', '.join(missing)} not found")
    as_other = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.getuid() == 0 else []
    if as_other and shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no setpriv to run it as nobody")
    folder = tempfile.mkdtemp(prefix="seqlake-pg-")
    Path(folder).chmod(0o777)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    subprocess.run([*as_other, "initdb", "-D", f"{folder}/db", "-U", "lake", "-A", "trust"], check=True,
                   stdout=subprocess.DEVNULL, timeout=60)  # fmt: skip
    command = ["postgres", "-D", f"{folder}/db", "-k", folder, "-p", str(port), "-c", "listen_addresses=127.0.0.1",
               "-c", "fsync=off"]  # fmt: skip
    with Path(folder, "log").open("w") as log:
        server = subprocess.Popen([*as_other, *command], stdout=log, stderr=log)
    try:
        connection = f"host=127.0.0.1 port={port} user=lake dbname=postgres"
        _wait(connection, server)
        yield connection
    finally:
        server.send_signal(signal.SIGINT)  # at once, whoever is still connected
        server.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(connection, server):
    import psycopg

    for _ in range(200):
        assert server.poll() is None, "PostgreSQL did not start"
        try:
            psycopg.connect(connection, connect_timeout=2).close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("PostgreSQL did not answer")


@pytest.fixture
def postgres_lake(postgres):
    """The connection string of a new, empty database."""
    import uuid

    import psycopg

    name = f"lake_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres.replace("dbname=postgres", f"dbname={name}")
