"""Tables found by name in a Unity Catalog: a catalog on loopback that lends keys."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import DatasetNotFoundError, ReadOnlyError

pytest.importorskip("deltalake")


@pytest.fixture
def catalog(monkeypatch):
    """A catalog: fill `tables` with locations and `keys` with what it lends; `asked` is what it was asked."""

    class Catalog(BaseHTTPRequestHandler):
        tables, keys, asked, refuse, moved = {}, {}, [], set(), {}

        def do_GET(self):
            name = self.path.rpartition("/")[2]
            self.asked.append(self.headers["Authorization"])
            if name in self.moved:
                self.send_response(302)
                self.send_header("Location", self.moved[name])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            found = self.tables.get(name)
            self.answer(404 if found is None else 200, {"storage_location": found, "table_id": name})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.asked.append(body["operation"])
            self.answer(403 if body["operation"] in self.refuse else 200, self.keys)

        def answer(self, code, document):
            data = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Catalog)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("DATABRICKS_WORKSPACE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("DATABRICKS_ACCESS_TOKEN", "secret-token")
    yield Catalog
    server.shutdown()
    server.server_close()


def filled(location, storage=None):
    ds = sl.create(location, {"action": sl.Trajectory(dim=2)}, storage=storage)
    ds.append([{"sequence_id": "ep_0", "action": np.ones((3, 2), np.float32)}])
    return ds


def test_a_table_on_this_machine_is_found_by_its_name(catalog, tmp_path):
    ds = filled(f"delta:{tmp_path}/t")
    catalog.tables["robots.lab.arm"] = f"file://{tmp_path}/t"
    found = sl.open("uc://robots.lab.arm")
    assert found.to_arrow().equals(ds.to_arrow())
    found.append([{"sequence_id": "ep_1"}])
    assert len(sl.open(f"{tmp_path}/t")) == 2
    assert catalog.asked[0] == "Bearer secret-token"


@pytest.mark.parametrize("refuse", [set(), {"READ_WRITE"}])
def test_a_table_in_a_bucket_is_opened_with_the_keys_that_are_lent(catalog, s3_bucket, refuse):
    uri, storage = s3_bucket
    ds = filled(f"delta:{uri}/t", storage)
    catalog.tables["robots.lab.arm"] = f"{uri}/t"
    catalog.refuse = refuse
    catalog.keys = {
        "aws_temp_credentials": {
            "access_key_id": storage["access_key_id"],
            "secret_access_key": storage["secret_access_key"],
            "session_token": "lent",
        }
    }
    place = {name: value for name, value in storage.items() if "access_key" not in name}
    found = sl.open("uc://robots.lab.arm", storage=place)
    assert found.to_arrow().equals(ds.to_arrow())
    assert catalog.asked[1:] == ["READ_WRITE", *(["READ"] if refuse else [])]


def test_a_name_that_the_catalog_does_not_know(catalog):
    with pytest.raises(DatasetNotFoundError, match="knows no such table"):
        sl.open("uc://robots.lab.nothing")
    assert catalog.asked


def test_without_a_catalog_the_variables_are_named(monkeypatch):
    monkeypatch.delenv("DATABRICKS_WORKSPACE_URL", raising=False)
    with pytest.raises(DatasetNotFoundError, match="DATABRICKS_WORKSPACE_URL"):
        sl.open("uc://robots.lab.arm")


def test_a_token_is_not_sent_in_the_clear():
    storage = {"databricks_workspace_url": "http://example.invalid", "databricks_access_token": "secret-token"}
    with pytest.raises(ReadOnlyError, match="https") as refused:
        sl.open("uc://robots.lab.arm", storage=storage)
    assert "secret-token" not in str(refused.value)


def test_a_token_does_not_follow_a_redirect(catalog):
    catalog.moved["robots.lab.arm"] = "/elsewhere/arm"
    with pytest.raises(DatasetNotFoundError):
        sl.open("uc://robots.lab.arm")
    assert catalog.asked == ["Bearer secret-token", None]
