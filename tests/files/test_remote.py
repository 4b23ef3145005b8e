from __future__ import annotations

import json
import pickle
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import obstore
import pytest
from obstore.store import MemoryStore

from seqlake.errors import ReadOnlyError, ShardChangedError, UnsafeReferenceError
from seqlake.files import ranges
from seqlake.files.credentials import Storage, for_deltalake, for_obstore, for_pyarrow, for_pyiceberg
from seqlake.files.remote import ObjectStore
from seqlake.files.stores import open_blob, open_store
from seqlake.testing.stores import StoreTests

HUSH = {"access_key_id": "HUSH-ID", "secret_access_key": "HUSH-SECRET", "session_token": "HUSH-TOKEN"}


class InMemory(ObjectStore):
    """obstore's own store in memory: the same code without a network."""

    def _connect(self):
        return MemoryStore()


class TestInMemory(StoreTests):
    @pytest.fixture
    def store(self):
        return InMemory("s3://memory/root")

    def test_descriptions_travel(self, store) -> None:
        assert pickle.loads(pickle.dumps(store)) == store  # the bytes themselves stay in this process

    def test_descriptions_open_in_a_fresh_process(self, store) -> None:
        store.put("a", b"one")
        assert pickle.loads(pickle.dumps(store.blob("a"))).size == 3


RIVAL = """
import json, sys
from seqlake.files.stores import open_store
uri, storage, name = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
store = open_store(uri, storage=storage)
sys.stdin.readline()
for n in range(10):
    try:
        store.put(f"v/{n:03}", name.encode(), if_absent=True)
        print(n)
    except FileExistsError:
        pass
"""


def test_of_rival_processes_exactly_one_wins_each_name(s3_bucket) -> None:
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", RIVAL, s3_bucket.uri, json.dumps(s3_bucket.storage), str(k)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for k in range(3)
    ]  # fmt: skip
    won = [rival.communicate("go\n", timeout=60)[0].split() for rival in rivals]
    assert sorted(int(n) for names in won for n in names) == list(range(10))
    store = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    for k, names in enumerate(won):
        for n in names:
            assert bytes(store.blob(f"v/{int(n):03}").ranges(np.array([0]), np.array([1]))[0]) == str(k).encode()


def test_a_store_that_cannot_refuse_a_rival_is_refused(monkeypatch) -> None:
    put = obstore.put

    def careless(store, path, data, *, mode, **options):
        put(store, path, data, mode="overwrite")

    monkeypatch.setattr(obstore, "put", careless)
    store = InMemory("s3://old/server")
    with pytest.raises(ReadOnlyError, match="If-None-Match"):
        store.put("marker", b"x", if_absent=True)
    assert list(store.list()) == []


def test_a_changed_object_of_the_same_size_is_noticed(s3_bucket) -> None:
    store = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    store.put("shard", b"one")
    blob = store.blob("shard")
    store.put("shard", b"two")
    with pytest.raises(ShardChangedError, match="changed while it was open"):
        blob.ranges(np.array([0]), np.array([1]))


def test_a_large_range_is_fetched_in_pieces(monkeypatch) -> None:
    monkeypatch.setattr(ranges, "LARGEST", 1000)
    monkeypatch.setattr(ranges, "GAP", 10)
    data = np.random.default_rng(0).bytes(10_000)
    store = InMemory("s3://memory/x")
    store.put("x", data)
    starts, stops = np.array([5000, 0, 3, 9990]), np.array([9985, 3500, 4, 10_000])
    parts = store.blob("x").ranges(starts, stops)
    assert [bytes(p) for p in parts] == [data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def test_an_object_of_known_size_is_read_without_being_asked_about(monkeypatch) -> None:
    store, data = InMemory("s3://memory/root"), bytes(range(250))
    store.put("a", data)
    monkeypatch.setattr(obstore, "head", None)  # nobody may ask
    monkeypatch.setattr(ranges, "GAP", 10)
    blob, parts = store.first_read("a", np.array([100, 0]), np.array([110, 5]), size=250)
    assert [bytes(part) for part in parts] == [data[100:110], data[:5]]
    assert (blob.location, blob.size) == ("s3://memory/root/a", 250)
    assert bytes(blob.ranges(np.array([240]), np.array([250]))[0]) == data[240:]
    store.put("a", data[::-1])
    with pytest.raises(ShardChangedError):  # it is held to the bytes that were read first
        blob.ranges(np.array([0]), np.array([5]))
    assert store.first_read("a", np.array([0]), np.array([5]), size=251) is None
    assert store.first_read("a", np.array([7]), np.array([7]), size=250) is None
    with pytest.raises(FileNotFoundError):
        store.first_read("b", np.array([0]), np.array([5]), size=250)


@pytest.mark.parametrize("name", ["tab\t", "line\n", "del\x7f"])
def test_names_that_no_store_takes_are_refused(name) -> None:
    with pytest.raises(UnsafeReferenceError, match="object store"):
        InMemory("s3://memory/x").put(name, b"")


def test_a_root_is_taken_letter_by_letter(s3_bucket) -> None:
    store = open_store(f"{s3_bucket.uri}/my set/100%20?#", storage=s3_bucket.storage)
    store.put("a", b"x")
    whole = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    assert list(whole.list()) == [("my set/100%20?#/a", 1)]
    assert open_blob(f"{store.root}/a", storage=s3_bucket.storage).size == 1


def test_the_environment_is_enough(s3_environment) -> None:
    open_store(s3_environment).put("a", b"x")
    assert open_blob(f"{s3_environment}/a").size == 1


@pytest.mark.usefixtures("s3_bucket")
def test_keys_of_a_profile_are_found(tmp_path, monkeypatch) -> None:
    (tmp_path / "credentials").write_text("[robots]\naws_access_key_id = ID\naws_secret_access_key = HUSH\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "robots")
    assert for_obstore({})["credential_provider"]()["access_key_id"] == "ID"
    assert "credential_provider" not in for_obstore(HUSH)
    assert "credential_provider" not in for_obstore({"skip_signature": "true"})
    assert "credential_provider" not in for_obstore({}, scheme="gs")


def test_secrets_are_in_no_message() -> None:
    storage = {**HUSH, "endpoint": "http://127.0.0.1:9", "region": "us-east-1"}
    store = open_store("s3://bucket/set", storage=storage)
    texts = [
        repr(store),
        str(store),
        repr(vars(store)),
        repr(Storage(storage)),
        repr(pickle.loads(pickle.dumps(store))),
    ]
    store._handle = obstore.store.S3Store("bucket", retry_config={"max_retries": 0}, **for_obstore(storage))
    with pytest.raises(OSError, match="the store failed") as error:
        store.blob("a")
    texts += [str(error.value), repr(error.value), repr(error.value.__cause__)]
    with pytest.raises(ValueError, match="nonsense") as refused:
        open_store("s3://bucket", storage={**HUSH, "nonsense": "HUSH"}).blob("a")
    texts.append(str(refused.value))
    assert "HUSH" not in " ".join(texts)
    message = "GET https://me:HUSH@h/c?sig=HUSH failed for HUSH-SECRET"
    assert Storage(HUSH).redacted(message) == "GET https://h/c?... failed for ***"


def test_plain_http_is_for_this_machine_or_on_request(monkeypatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert for_obstore({"endpoint": "http://127.0.0.1:9000"})["client_options"] == {"allow_http": True}
    assert for_obstore({"endpoint": "http://store.example"})["client_options"] == {}
    assert for_obstore({"endpoint": "http://store.example", "allow_http": "true"})["client_options"]["allow_http"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    assert for_obstore({})["client_options"] == {"allow_http": True}


def test_each_library_gets_its_own_names() -> None:
    s3 = {"AWS_ACCESS_KEY_ID": "i", "secret_access_key": "s", "endpoint": "http://h:1", "skip_signature": "false"}
    assert for_pyarrow(s3) == {
        "access_key": "i", "secret_key": "s", "endpoint_override": "h:1", "scheme": "http", "anonymous": False,
    }  # fmt: skip
    azure = {"azure_storage_account_name": "n", "account_key": "k", "mmap": "false"}
    assert for_pyarrow(azure, scheme="abfss") == {"account_name": "n", "account_key": "k"}
    assert for_pyiceberg(azure, scheme="az") == {"adls.account-name": "n", "adls.account-key": "k"}
    assert for_deltalake(azure, scheme="az") == {"AZURE_STORAGE_ACCOUNT_NAME": "n", "AZURE_STORAGE_ACCOUNT_KEY": "k"}
    with pytest.raises(ValueError, match="expected one of"):
        for_pyarrow({}, scheme="ftp")


def test_pyarrow_reads_with_what_it_was_given(s3_bucket) -> None:
    from pyarrow.fs import S3FileSystem

    open_store(s3_bucket.uri, storage=s3_bucket.storage).put("a/b", b"bytes")
    files = S3FileSystem(**for_pyarrow(s3_bucket.storage))
    with files.open_input_stream(f"{s3_bucket.uri.removeprefix('s3://')}/a/b") as file:
        assert file.read() == b"bytes"


@pytest.mark.parametrize("uri", ["s3://", "s3:///x", "ftp://h/x"])
def test_a_root_without_bucket_or_scheme_is_refused(uri) -> None:
    with pytest.raises(ValueError, match="expected"):
        open_store(uri)


class Breaking:
    """A bucket that breaks the first connection of requests: before the answer, or within it where it has a body.

    Args:
        when: `before` or `within`.
        kept: Whether a request whose answer never came was carried out.
    """

    def __init__(self, when: str, *, kept: bool) -> None:
        self.when, self.kept = when, kept
        self.objects: dict[str, bytes] = {}
        self.seen: list[str] = []
        server = type("Handler", (BaseHTTPRequestHandler,), {f"do_{verb}": self._answer() for verb in VERBS})
        server.protocol_version, server.log_message = "HTTP/1.1", lambda *_: None
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), server)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def store(self) -> ObjectStore:
        options = {"endpoint": f"http://127.0.0.1:{self.server.server_port}", "region": "us-east-1", **HUSH}
        return open_store("s3://bucket/set", storage=options)

    def _answer(self):
        def answer(request):
            told = f"{request.command} {request.path}"
            body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
            first = told not in self.seen and (self.when == "before" or request.command == "POST" or "list" in told)
            self.seen.append(told)
            if not first or self.kept:
                code, found = self._done(request, body)
            if first:
                if self.when == "within":
                    request.send_response(200)
                    request.send_header("Content-Length", "1000")
                    request.end_headers()
                    request.wfile.write(b"<?xml")
                request.close_connection = True
                request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
                return
            request.send_response(code)
            request.send_header("Content-Length", str(len(found)))
            request.send_header("ETag", '"x"')
            request.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            request.end_headers()
            request.wfile.write(found)

        return answer

    def _done(self, request, body: bytes) -> tuple[int, bytes]:
        name = request.path.partition("?")[0].removeprefix("/bucket").removeprefix("/")
        if request.command == "PUT":
            if request.headers.get("If-None-Match") and name in self.objects:
                return 412, b""
            self.objects[name] = body
            return 200, b""
        if request.command == "POST":
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            found = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys if self.objects.pop(key, None) or 1)
            return 200, f"<DeleteResult>{found}</DeleteResult>".encode()
        if "list-type" not in request.path:
            return (200, self.objects[name]) if name in self.objects else (404, b"")
        listed = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag>"
            f"<Size>{len(data)}</Size></Contents>"
            for key, data in sorted(self.objects.items())
        )
        return 200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>".encode()


VERBS = ("GET", "PUT", "POST", "DELETE")


@pytest.mark.sampled
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("when", ["before", "within"])
def test_a_broken_connection_is_made_again(when, kept) -> None:
    bucket = Breaking(when, kept=kept)
    store = bucket.store()
    store._exclusive = True  # its proof is another test's
    try:
        store.put("a", b"one", if_absent=True)
    except FileExistsError:
        assert kept, "obstore itself may have asked twice"
    store.put("b", b"two")
    assert store.read("a") == b"one"
    assert list(store.list()) == [("a", 3), ("b", 3)]
    with pytest.raises(FileExistsError):
        store.put("a", b"six", if_absent=True)
    store.delete(["b"])
    assert sorted(bucket.objects) == ["set/a"]
    assert bucket.objects["set/a"] == b"one"
    bucket.server.shutdown()
    bucket.server.server_close()


def test_a_rival_is_not_taken_for_an_answer_that_was_lost() -> None:
    bucket = Breaking("before", kept=False)
    store = bucket.store()
    store._exclusive = True
    bucket.objects["set/a"] = b"theirs"
    with pytest.raises(FileExistsError):
        store.put("a", b"mine", if_absent=True)
    assert bucket.objects == {"set/a": b"theirs"}
    bucket.server.shutdown()
    bucket.server.server_close()
