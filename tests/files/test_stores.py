from __future__ import annotations

import errno
import os
import pickle
import select
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import ReadOnlyError, ShardChangedError
from seqlake.files import credentials
from seqlake.files.blobs import MemoryBlob
from seqlake.files.local import LocalBlob, LocalStore, SystemCalls
from seqlake.files.remote import ObjectStore
from seqlake.files.stores import open_blob, open_store
from seqlake.testing.stores import StoreTests


def test_a_scheme_without_a_store_says_where_one_would_be() -> None:
    with pytest.raises(ValueError, match=r"seqlake\.stores.*'box'"):
        open_blob("box://arm/cam.mp4")


def test_references_of_a_scheme_without_a_store_are_carried_and_told(tmp_path: Path) -> None:
    place = "box://arm/log.mcap"
    ds = sl.create(tmp_path / "a", {"log": sl.ColumnType("mcap")})
    ds.append([{"sequence_id": "a", "log": place}])
    assert ds.to_arrow()["log"].to_pylist() == [place]
    assert [finding.code for finding in ds.validate().warnings] == ["F408"]
    assert sl.convert(ds, tmp_path / "b").to_arrow()["log"].to_pylist() == [place]


class Recorded(SystemCalls):
    """Keeps the order of the calls, and can fail one."""

    def __init__(self, fail: str = "", error: int = errno.ENOSPC) -> None:
        self.log: list[str] = []
        self.fail = fail
        self.error = error
        self.names: dict[int, str] = {}

    def _called(self, name: str, *paths: object) -> None:
        self.log.append(" ".join([name, *(Path(str(p)).name for p in paths)]))
        if name == self.fail:
            raise OSError(self.error, os.strerror(self.error), str(paths[0]) if paths else None)

    def create(self, path):
        self._called("create", path)
        fd = super().create(path)
        self.names[fd] = path.name
        return fd

    def write(self, fd, data):
        self._called("write", self.names[fd])
        return super().write(fd, data)

    def fsync(self, fd):
        self._called("fsync", self.names.get(fd, "?"))
        super().fsync(fd)

    def fsync_folder(self, path):
        self._called("fsync_folder", path)
        super().fsync_folder(path)

    def mkdir(self, path):
        self._called("mkdir", path)
        super().mkdir(path)

    def link(self, source, target):
        self._called("link", source, target)
        super().link(source, target)

    def rename(self, source, target):
        self._called("rename", source, target)
        super().rename(source, target)

    def unlink(self, path):
        self._called("unlink", path)
        super().unlink(path)


class TestLocalStore(StoreTests):
    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(tmp_path / "root")


class TestLocalStoreThatIsRead(StoreTests):
    """As on network file systems: nothing is mapped."""

    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(tmp_path / "root", mapped=False)


class TestS3(StoreTests):
    @pytest.fixture
    def store(self, s3_bucket):
        uri, storage = s3_bucket
        return open_store(f"{uri}/some/folder", storage=storage)


def test_a_version_is_linked_after_its_bytes_are_durable(tmp_path) -> None:
    calls = Recorded()
    store = LocalStore(tmp_path, calls=calls)
    store.put("versions/7", b"{}", if_absent=True, temporary="staged/T.tmp")
    assert calls.log == [
        "mkdir versions", f"fsync_folder {tmp_path.name}", "mkdir staged", f"fsync_folder {tmp_path.name}",
        "create T.tmp", "write T.tmp", "fsync T.tmp", "link T.tmp 7", "unlink T.tmp",
    ]  # fmt: skip


def test_a_replaced_file_is_renamed_after_its_bytes_are_durable(tmp_path) -> None:
    calls = Recorded()
    store = LocalStore(tmp_path, calls=calls)
    store.put("mixtrain.json", b"{}")
    calls.log.clear()
    store.put("mixtrain.json", b"{ }", temporary="T.tmp")
    assert calls.log == ["create T.tmp", "write T.tmp", "fsync T.tmp", "rename T.tmp mixtrain.json"]


@pytest.mark.parametrize("fail", ["write", "fsync"])
def test_a_full_disk_leaves_nothing(tmp_path, fail) -> None:
    store = LocalStore(tmp_path, calls=Recorded(fail))
    with pytest.raises(OSError, match="No space left"):
        store.put("files/large", b"x" * 1000)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS])
def test_what_may_not_be_written_is_read_only(tmp_path, error) -> None:
    store = LocalStore(tmp_path, calls=Recorded("create", error))
    with pytest.raises(ReadOnlyError, match="cannot be written"):
        store.put("a", b"x")


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP])
def test_without_hard_links_an_exclusive_rename_serves(tmp_path, error) -> None:
    store = LocalStore(tmp_path, calls=Recorded("link", error))
    store.put("v/1", b"first", if_absent=True, temporary="a.tmp")
    with pytest.raises(FileExistsError):
        store.put("v/1", b"second", if_absent=True, temporary="b.tmp")
    assert bytes(store.blob("v/1").view()) == b"first"
    store.copy("v/1", "v/2")
    assert list(store.list()) == [("v/1", 5), ("v/2", 5)]


def test_with_neither_the_way_out_is_named(tmp_path) -> None:
    class Poor(Recorded):
        def rename_new(self, source, target):
            raise OSError(errno.ENOSYS, "none")

    store = LocalStore(tmp_path, calls=Poor("link", errno.EPERM))
    with pytest.raises(ReadOnlyError, match="store's own URI"):
        store.put("v/1", b"x", if_absent=True, temporary="a.tmp")


def test_a_temporary_name_left_by_a_dead_attempt_is_used_again(tmp_path) -> None:
    store = LocalStore(tmp_path)
    store.put("staged/T.tmp", b"torn")
    store.put("v/1", b"whole", if_absent=True, temporary="staged/T.tmp")
    assert list(store.list()) == [("v/1", 5)]


def test_a_map_of_a_changed_file_raises_and_does_not_kill(tmp_path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"x" * 100_000)
    blob = LocalBlob(path)
    assert len(blob.view()) == 100_000
    path.write_bytes(b"short")
    with pytest.raises(ShardChangedError, match="changed while it was open"):
        blob.view()
    with pytest.raises(ShardChangedError):
        blob.ranges(np.array([0]), np.array([9]))


def test_an_empty_file_has_an_empty_view(tmp_path) -> None:
    (tmp_path / "empty").touch()
    assert bytes(open_blob(tmp_path / "empty").view()) == b""


def test_a_folder_is_no_blob(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalBlob(tmp_path)


def test_memory_blobs_are_blobs() -> None:
    blob = MemoryBlob(bytearray(b"abcdef"))
    assert bytes(blob.ranges(np.array([1, 0]), np.array([3, 6]))[0]) == b"bc"
    again = pickle.loads(pickle.dumps(blob))
    assert (bytes(again.view()), again.token) == (b"abcdef", blob.token)
    with pytest.raises(ShardChangedError):
        blob.ranges(np.array([0]), np.array([7]))


def test_secrets_are_never_printed(s3_bucket) -> None:
    uri, storage = s3_bucket
    secret = {**storage, "secret_access_key": "HUSH-HUSH", "session_token": "HUSH-TOKEN"}
    store = ObjectStore(uri, storage=secret)
    shown = [repr(store), str(store)]
    for call in (lambda: store.blob("missing"), lambda: ObjectStore("s3://no-such-bucket-1", storage=secret).blob("a")):
        with pytest.raises(OSError) as error:
            call()
        shown += [str(error.value), repr(error.value)]
    assert not any("HUSH" in text for text in shown)


def test_options_are_translated_in_one_place() -> None:
    storage = {"AWS_ACCESS_KEY_ID": "a", "secret_access_key": "b", "endpoint": "http://x", "allow_http": "true"}
    assert credentials.for_obstore(storage) == {
        "config": {"access_key_id": "a", "secret_access_key": "b", "endpoint": "http://x"},
        "client_options": {"allow_http": True},
    }
    assert credentials.for_pyarrow(storage)["access_key"] == "a"
    assert credentials.for_pyiceberg(storage)["s3.endpoint"] == "http://x"
    assert credentials.for_deltalake(storage)["AWS_ALLOW_HTTP"] == "true"


def test_unknown_schemes_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of"):
        open_store("ftp://host/data")


def test_neighbouring_ranges_are_fetched_together(s3_bucket, monkeypatch) -> None:
    import obstore

    uri, storage = s3_bucket
    store = open_store(uri, storage=storage)
    store.put("x", bytes(4_000_000))
    blob = store.blob("x")
    requests = []
    get = obstore.get
    monkeypatch.setattr(
        obstore, "get", lambda s, p, options: requests.append(options["range"]) or get(s, p, options=options)
    )
    starts = np.arange(0, 100_000, 1000)
    blob.ranges(np.append(starts, 3_000_000), np.append(starts + 10, 3_000_010))
    assert sorted(requests) == [(0, 99_010), (3_000_000, 3_000_010)]


def _in_forked_child(work, seconds: float = 5.0) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            work()
            os.write(writing, b"no error")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], seconds)
    said = os.read(reading, 4096) if ready else b"hung"
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    return said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_and_does_not_hang(s3_bucket) -> None:
    uri, storage = s3_bucket
    store = open_store(uri, storage=storage)
    store.put("a", b"x")
    blob = store.blob("a")
    for work in (
        lambda: store.blob("a"),
        lambda: blob.ranges(np.array([0]), np.array([1])),
        lambda: list(store.list()),
    ):
        said = _in_forked_child(work)
        assert said.startswith(b"ForkedProcessError")
        assert b'multiprocessing_context="forkserver"' in said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_use_local_data(s3_bucket, tmp_path) -> None:
    uri, storage = s3_bucket
    open_store(uri, storage=storage).put("a", b"x")
    store = LocalStore(tmp_path)
    store.put("a", b"local")

    def work() -> None:
        assert bytes(store.blob("a").view()) == b"local"

    assert _in_forked_child(work) == b"no error"


def test_http_is_read_by_range_and_not_written() -> None:
    data = np.random.default_rng(1).bytes(50_000)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            return

        def do_HEAD(self):
            self.do_GET(body=False)

        def do_GET(self, *, body=True):
            first, last = 0, len(data) - 1
            if asked := self.headers.get("Range"):
                first, last = (int(n) for n in asked.removeprefix("bytes=").split("-"))
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("ETag", '"one"')
            self.send_header("Last-Modified", "Sat, 21 Nov 2026 12:00:00 GMT")
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.end_headers()
            if body:
                self.wfile.write(data[first : last + 1])

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            place = f"http://127.0.0.1:{server.server_port}/videos/one.mp4"
            blob = open_blob(place, storage={"allow_http": "true"})
            assert blob.size == len(data)
            assert bytes(blob.ranges(np.array([100]), np.array([200]))[0]) == data[100:200]
            store = open_store(place.rpartition("/")[0], storage={"allow_http": "true"})
            with pytest.raises(ReadOnlyError, match="read-only"):
                store.put("x", b"")
            with pytest.raises(ReadOnlyError, match="cannot list"):
                list(store.list())
        finally:
            server.shutdown()
            thread.join()
