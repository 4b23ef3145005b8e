"""What a dataset may name: nothing on this machine or in a private network, and no bucket that was not allowed."""

from __future__ import annotations

import http.server
import pickle
import socket
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.reading.inventory import elsewhere
from seqlake.errors import SeqlakeError, UnsafeReferenceError
from seqlake.files import allowed, web
from seqlake.files.stores import open_blob, open_store
from seqlake.testing.processes import fresh

from ..media.test_image import png  # noqa: TID252 - tests are no package that could be named
from .test_web import Handler

PICTURE = png(np.full((4, 6, 3), 7, np.uint8), 2)


class Server(http.server.ThreadingHTTPServer):
    """Counts who connects, also those who then ask for nothing."""

    def __init__(self, family: socket.AddressFamily = socket.AF_INET) -> None:
        self.address_family = family
        super().__init__(("127.0.0.1" if family == socket.AF_INET else "::1", 0), Handler)
        self.asked, self.moved, self.failing, self.data, self.tag = [], {}, {}, PICTURE, '"one"'
        self.connected = 0

    def get_request(self):
        self.connected += 1
        return super().get_request()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(web.time, "sleep", lambda _: None)
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def cells(place: Path, references: list[str]) -> sl.Dataset:
    """A dataset whose rows name these files, as somebody may send it."""
    ds = sl.create(place, sl.Schema({"action": sl.Trajectory(dim=1, fps=10), "cam": sl.Image(fps=10, frames="files")}))
    steps = np.zeros((3, 1), np.float32)
    ds.append([{"sequence_id": f"s{n}", "action": steps, "cam": [one] * 3} for n, one in enumerate(references)])
    return ds


LOOPBACK = ["127.0.0.1", "localhost", "LOCALHOST", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "[::ffff:127.0.0.1]"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_cell_reaches_nothing_on_this_machine_however_it_spells_it(server, host) -> None:
    where = f"http://{host}:{server.server_port}/pic.png"
    with pytest.raises(UnsafeReferenceError, match="allow_hosts"):
        sl.scan({"sequence_id": ["a"], "cam": [where]}, column_types={"cam": sl.Image()})[0]["cam"].read()
    assert server.connected == 0


PUBLIC = "93.184.215.14 2606:2800:21f:cb07:6820:80da:af6b:8b2c 64:ff9b::5db8:d70e"
PRIVATE = (
    "127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 0.0.0.0 169.254.169.254 100.64.0.1 224.0.0.1 239.1.1.1 255.255.255.255 "
    "::1 :: fe80::1%eth0 fc00::1 ff02::1 fec0::1 ::ffff:10.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 64:ff9b:1::1 "
    "2002:7f00:1:: 2002:a9fe:a9fe::1 2001:0:7f00:1:0:0:0:0"
)


def test_addresses_that_are_public_and_those_that_are_not() -> None:
    assert [one for one in PUBLIC.split() if not allowed.is_public(one)] == []
    assert [one for one in PRIVATE.split() if allowed.is_public(one)] == []


def frames_of(ds: sl.Dataset) -> np.ndarray:
    batch = next(iter(sl.Loader(ds, window={"action": range(1), "cam": range(1)}, batch_size=1)))
    return np.asarray(batch["cam"])


def test_every_way_of_reading_cells_is_refused_and_allowed_alike(server, tmp_path) -> None:
    where = f"http://localhost:{server.server_port}/pic.png"
    ds = cells(tmp_path / "ds", [where])
    for read in (lambda ds: ds["s0"]["cam"][0], frames_of):
        with pytest.raises(UnsafeReferenceError, match="allow_hosts"):
            read(ds)
        with pytest.raises(UnsafeReferenceError, match="allow_hosts"):
            read(pickle.loads(pickle.dumps(ds.where("sequence_id = 's0'"))))
    with pytest.raises(UnsafeReferenceError, match="allow_hosts"):
        ds.files(elsewhere=True)
    found = list(ds.validate(depth="decode").findings)
    assert any("allow_hosts" in one.message for one in found), found
    assert server.connected == 0

    trusting = sl.open(ds.location, allow_hosts=["localhost"])
    assert trusting["s0"]["cam"][0].shape == (4, 6, 3)
    assert frames_of(trusting).shape[-3:] == (4, 6, 3)
    assert frames_of(pickle.loads(pickle.dumps(trusting.where("sequence_id = 's0'")))).shape[-3:] == (4, 6, 3)
    assert [one.state for one in trusting.files(elsewhere=True)] == ["present"]
    assert not [one for one in trusting.validate(depth="decode").findings if "allow_hosts" in one.message]
    assert elsewhere(ds) == {f"http://localhost:{server.server_port}": 3}


def in_another_process(ds: sl.Dataset) -> str:
    try:
        return str(ds["s0"]["cam"][0].shape)
    except SeqlakeError as error:
        return error.code


def test_the_rule_travels_to_workers(server, tmp_path) -> None:
    ds = cells(tmp_path / "ds", [f"http://127.0.0.1:{server.server_port}/pic.png"])
    with fresh().Pool(1) as pool:
        assert pool.map(in_another_process, [ds, sl.open(ds.location, allow_hosts="127.0.0.1")]) == [
            "unsafe-reference",
            "(4, 6, 3)",
        ]


def test_what_the_user_names_is_asked_and_so_is_the_host_of_a_root(server) -> None:
    assert bytes(open_blob(f"http://localhost:{server.server_port}/pic.png").ranges(np.array([0]), np.array([4]))[0])
    store = open_store(f"http://localhost:{server.server_port}/set")
    assert pickle.loads(pickle.dumps(store)).blob("files/1.png").size == len(PICTURE)
    root, other = f"http://localhost:{server.server_port}/set", f"http://127.0.0.1:{server.server_port}/pic.png"
    assert open_blob(f"http://LOCALHOST:{server.server_port}/pic.png", named_by=root).size == len(PICTURE)
    before = server.connected
    with pytest.raises(UnsafeReferenceError, match="127.0.0.1"):
        open_blob(other, named_by=root)
    assert server.connected == before


def test_a_redirect_into_the_network_is_refused_where_redirects_are_allowed(server) -> None:
    """The first server is the user's own; where it sends its readers is not the user's word."""
    inner = Server()
    thread = threading.Thread(target=inner.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        server.moved["away"] = f"http://localhost:{inner.server_port}/secret"
        away = f"http://127.0.0.1:{server.server_port}/away"
        with pytest.raises(UnsafeReferenceError, match="allow_hosts"):
            open_blob(away, storage={"allow_redirects": "true"})
        assert inner.connected == 0
        blob = open_blob(away, storage={"allow_redirects": "true", "allow_hosts": "localhost"})
        assert blob.size == len(PICTURE)
    finally:
        inner.shutdown()
        thread.join()
        inner.server_close()


def test_a_name_is_looked_up_once_and_the_judged_address_is_the_one_connected_to(server, monkeypatch) -> None:
    """A name server that says something else the second time is never asked a second time."""
    asked, real = [], socket.getaddrinfo

    def count(*arguments, **options):
        asked.append(arguments[0])
        return real(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", count)
    where = f"http://localhost:{server.server_port}/pic.png"
    with pytest.raises(UnsafeReferenceError):
        open_blob(where, named_by="/data/ds")
    assert asked == ["localhost"]
    open_blob(where)
    assert asked == ["localhost"] * 2


def test_through_a_proxy_the_name_is_judged(server, monkeypatch) -> None:
    """The peer is the proxy, which the environment names; it must not be asked for this machine either."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    for host in ("localhost", "10.0.0.7", "169.254.169.254"):
        with pytest.raises(UnsafeReferenceError, match="allow_hosts"):
            open_blob(f"http://{host}/pic.png", named_by="/data/ds")
    assert server.connected == 0
    assert open_blob("http://films.invalid/pic.png", named_by="/data/ds").size == len(PICTURE)  # the proxy knows it
    assert open_blob("http://10.0.0.7/pic.png", named_by="/data/ds", storage={"allow_hosts": "10.0.0.7"}).size


WRONG = [
    "http://[::1/x", "http://host:70000/x", "http://host:port/x", "http:///x", f"http://{'a' * 64}.org/x",
    "ftp://host/x", "s3:///x", "http://me:HUSH@host/x", "file://other/x", "s3://evil.org:80#/x", "gs://a%2Fb/x",
    "http://a..b/x", "x\0y",
]  # fmt: skip


@pytest.mark.parametrize("reference", WRONG)
def test_a_reference_that_names_nothing_is_an_error_of_ours(reference) -> None:
    with pytest.raises(UnsafeReferenceError) as error:
        sl.scan({"sequence_id": ["a"], "cam": [reference]}, column_types={"cam": sl.Image()})[0]["cam"].read()
    assert "HUSH" not in f"{error.value} {error.value!r}"


@pytest.mark.parametrize(
    ("buckets", "refused"),
    [
        (None, []), ((), ["films", "logs"]), (["films"], ["logs"]), ("films", ["logs"]),
        (["gs://films"], ["films", "logs"]), (["s3a://films/", "logs"], []),
    ],
)  # fmt: skip
def test_other_buckets_are_used_unless_only_some_are_allowed(s3_bucket, tmp_path, buckets, refused) -> None:
    own = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    own.put("pic.png", PICTURE)
    storage = allowed.with_rules(s3_bucket.storage, buckets=buckets)
    assert open_blob(f"{s3_bucket.uri}/pic.png", named_by=f"{s3_bucket.uri}/ds", storage=storage).size == len(PICTURE)
    for name in ("films", "logs"):
        kind = (
            UnsafeReferenceError if name in refused else FileNotFoundError
        )  # it was asked, and there is no such bucket
        with pytest.raises(kind):
            open_blob(f"s3://{name}/pic.png", named_by=f"{s3_bucket.uri}/ds", storage=storage)


def test_the_rules_come_from_open_scan_and_the_command_line(server, tmp_path) -> None:
    from seqlake.cli import main

    ds = cells(tmp_path / "ds", [f"http://localhost:{server.server_port}/pic.png", "s3://films/pic.png"])
    only = sl.open(ds.location, allow_buckets=[])
    for selection in (only, only.where("sequence_id = 's1'")):
        with pytest.raises(UnsafeReferenceError, match="allow_buckets"):
            selection["s1"]["cam"][0]
    scanned = sl.scan(tmp_path / "ds", allow_hosts=["localhost"])
    assert scanned[0]["cam"][0].shape == (4, 6, 3)
    for options, code in (([], 1), (["--allow-host", "localhost", "--allow-bucket", "none"], 1)):
        with pytest.raises(SystemExit) as stop:
            main(["files", str(tmp_path / "ds"), "--elsewhere", *options])
        assert stop.value.code == code
    assert elsewhere(ds) == {f"http://localhost:{server.server_port}": 3, "s3://films": 3}


@pytest.mark.parametrize("wrong", ["http://host", "host/x", "a,b", "", "host:80"])
def test_a_host_is_a_name_and_nothing_else(wrong) -> None:
    with pytest.raises(ValueError, match="allow_hosts"):
        sl.scan({"sequence_id": ["a"]}, allow_hosts=[wrong])


@pytest.mark.parametrize("wrong", ["s3://films/a", "http://host", "a/b", ""])
def test_a_bucket_is_a_name_or_its_address(wrong) -> None:
    with pytest.raises(ValueError, match="allow_buckets"):
        sl.open("nowhere", allow_buckets=[wrong])


def test_references_elsewhere_are_counted_by_place() -> None:
    texts = ["s3://films/1", "S3://Films/2", "https://me:pw@h:8/x?y", "a/b", "file:///x", "/abs", None, "s3://films"]
    rows = {
        "sequence_id": [str(n) for n in range(len(texts))],
        "cam": texts,
        "part": [None if one is None else {"url": one, "first_frame": 0} for one in texts],
        "many": [[one, "local.png"] for one in texts],
    }
    kinds = {"cam": sl.Image(), "part": sl.Video(), "many": sl.Image()}
    places = elsewhere(sl.scan(pa.table(rows), column_types=kinds))
    assert places == {"s3://films": 9, "https://h:8": 3}


def test_a_catalog_that_somebody_sent_names_no_bucket_and_no_host_that_may_not_be_named(server, tmp_path) -> None:
    place = f"ducklake:sqlite:{tmp_path}/lake.sqlite?table=arm"
    ds = sl.create(place, sl.Schema({"action": sl.Trajectory(dim=1)}))
    ds.append([{"sequence_id": "s0", "action": np.zeros((3, 1), np.float32)}])
    for elsewhere_, hint in (("s3://films/x/", "buckets"), (f"http://localhost:{server.server_port}/x/", "hosts")):
        with closing(sqlite3.connect(tmp_path / "lake.sqlite")) as catalog, catalog:
            catalog.execute("UPDATE ducklake_metadata SET value = ? WHERE key = 'data_path'", (elsewhere_,))
        with pytest.raises(UnsafeReferenceError, match=f"allow_{hint}"):
            pickle.loads(pickle.dumps(sl.open(place, allow_buckets=[])))["s0"]["action"]
    assert server.connected == 0
