"""A small Iceberg dataset in a local warehouse, and the same table as pyiceberg sees it."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

pytest.importorskip("pyiceberg")


def rows(first, last):
    """Rows whose cells follow from their number; `action` has as many steps as the number says."""
    return [
        {
            "sequence_id": f"ep_{n:03d}",
            "task": ("pick", "place")[n % 2],
            "reward": None if n % 5 == 0 else n / 2,
            "action": None if n % 7 == 0 else np.arange(2 * n, dtype=np.float32).reshape(n, 2).tolist(),
        }
        for n in range(first, last)
    ]


SCHEMA = {"task": pa.string(), "reward": pa.float32(), "action": sl.Trajectory(dim=2)}


@pytest.fixture
def address(tmp_path):
    return f"iceberg:{tmp_path}/warehouse/robots.episodes"


@pytest.fixture
def dataset(address):
    """Two shards: rows 0 to 5 and 6 to 9."""
    ds = sl.create(address, SCHEMA)
    ds.append(rows(0, 6))
    ds.append(rows(6, 10))
    return ds


@pytest.fixture
def theirs(address):
    """Opens the table with pyiceberg alone, by its own configuration."""
    from pyiceberg.catalog.sql import SqlCatalog

    folder = address.removeprefix("iceberg:").rpartition("/")[0]

    def opened():
        return SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}").load_table(
            ("robots", "episodes")
        )

    return opened


class RestCatalog(BaseHTTPRequestHandler):
    """The few verbs of Iceberg's REST catalog that clients need for one table, over a catalog in SQLite."""

    behind: Any
    spoil: list[str]

    def log_message(self, *_):
        pass

    def answer(self, code, document=None):
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, code, error):
        self.answer(code, {"error": {"message": str(error), "type": type(error).__name__, "code": code}})

    def table(self, made):
        # Credentials may be handed out with a table; these are none.
        self.answer(
            200,
            {
                "metadata-location": made.metadata_location,
                "metadata": json.loads(made.metadata.model_dump_json()),
                "config": {},
            },
        )

    def committed(self, name, wanted):
        return self.behind.commit_table(SimpleNamespace(name=lambda: name), wanted.requirements, wanted.updates)

    def do_HEAD(self):
        parts = self.path.strip("/").split("/")
        there = (
            self.behind.table_exists((parts[2], parts[4]))
            if len(parts) == 5
            else self.behind.namespace_exists(parts[2])
        )
        self.answer(204 if there else 404)

    def do_GET(self):
        from pyiceberg.exceptions import NoSuchTableError

        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[1] == "config":
            self.answer(200, {"defaults": {}, "overrides": {}})
        elif len(parts) == 5:
            try:
                self.table(self.behind.load_table((parts[2], parts[4])))
            except NoSuchTableError as error:
                self.refuse(404, error)
        elif len(parts) == 4:
            found = self.behind.list_tables(parts[2])
            self.answer(200, {"identifiers": [{"namespace": [ns], "name": name} for ns, name in found]})
        elif len(parts) == 3:
            there = self.behind.namespace_exists(parts[2])
            self.answer(200, {"namespace": [parts[2]], "properties": {}}) if there else self.refuse(
                404, KeyError(parts[2])
            )
        else:
            self.answer(200, {"namespaces": [list(one) for one in self.behind.list_namespaces()]})

    def do_POST(self):
        from pyiceberg.catalog.rest import CreateTableRequest
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
        from pyiceberg.table import CommitTableRequest

        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = self.path.strip("/").split("/")
        if len(parts) == 2:
            self.behind.create_namespace(tuple(json.loads(text)["namespace"]))
            self.answer(200, json.loads(text))
        elif len(parts) == 4:
            wanted = CreateTableRequest.model_validate({"location": None, **json.loads(text)})
            # A staged table is shown to its maker alone, who commits it with everything that is in it.
            make = self.behind._create_staged_table if wanted.stage_create else self.behind.create_table
            spec = wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC
            try:
                self.table(make((parts[2], wanted.name), wanted.table_schema, None, spec, properties=wanted.properties))
            except TableAlreadyExistsError as error:
                self.refuse(409, error)
        elif len(parts) == 5:
            wanted = CommitTableRequest.model_validate_json(text)
            spoil = self.spoil.pop() if self.spoil else ""
            if spoil == "before":
                self.refuse(500, OSError("down"))
                return
            try:
                made = self.committed((parts[2], parts[4]), wanted)
            except CommitFailedException as error:
                self.refuse(409, error)
            else:
                self.refuse(500, OSError("down")) if spoil == "after" else self.table(made)
        elif parts[1:] == ["transactions", "commit"]:
            for one in json.loads(text)["table-changes"]:
                wanted = CommitTableRequest.model_validate(one)
                self.committed((*wanted.identifier.namespace.root, wanted.identifier.name), wanted)
            self.answer(204)
        else:
            self.answer(404)


@pytest.fixture
def rest(tmp_path):
    """A REST catalog on loopback: its address, the catalog behind it, and what it is to spoil next."""
    from pyiceberg.catalog.sql import SqlCatalog

    (tmp_path / "rest").mkdir()
    uri = f"sqlite:///{tmp_path}/rest/c.db?check_same_thread=false&timeout=60"
    behind = SqlCatalog("behind", uri=uri, warehouse=f"file://{tmp_path}/rest")
    spoil: list[str] = []
    handler = type("Handler", (RestCatalog,), {"behind": behind, "spoil": spoil})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", behind, spoil
    server.shutdown()
    server.server_close()
    thread.join()
    behind.close()


@pytest.fixture
def make_rows():
    return rows


@pytest.fixture
def cells():
    """All rows of anything that gives an Arrow table, by id, as plain values."""

    def of(table):
        return {
            row["sequence_id"]: row for row in (table if isinstance(table, pa.Table) else table.to_arrow()).to_pylist()
        }

    return of
