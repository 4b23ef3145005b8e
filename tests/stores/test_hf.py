from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import numpy as np
import pyarrow as pa
import pytest
from tests.formats.lerobot import by_hand
from tests.hub import files_in

import seqlake as sl
from seqlake.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    ReadOnlyError,
    ShardChangedError,
    UnsafeReferenceError,
)
from seqlake.files import web
from seqlake.files.stores import open_blob, open_store, read_all
from seqlake.stores.hf import hub as hubs
from seqlake.stores.hf.places import parse
from seqlake.testing import samples
from seqlake.testing.stores import StoreTests, _ints, _raises

DATA = np.random.default_rng(0).bytes(2_000_000)


class Changing:
    """A store over a dataset on the Hub that moves on: each change is a commit, each look is at the newest one."""

    def __init__(self, repo, root):
        self.repo, self.root = repo, root

    def __getattr__(self, name):
        return getattr(open_store(self.root), name)

    def put(self, path, data, *, if_absent=False, temporary=""):
        from seqlake.files.locations import checked

        checked(path)
        data = data.read_bytes() if isinstance(data, Path) else data
        files = self.repo.commits[self.repo.refs["main"]]
        if if_absent and f"in/{path}" in files:
            raise FileExistsError(17, "there", path)
        self.repo.commit({f"in/{path}": bytes(data)})


class TestHub(StoreTests):
    """The laws of reading, over HTTP and the official client; what writes is refused."""

    @pytest.fixture
    def store(self, hub):
        return Changing(hub.repo("owner/arm"), "hf://datasets/owner/arm/in")

    def test_if_absent_lets_one_win(self, store) -> None:
        _raises(ReadOnlyError, open_store(store.root).put, "a", b"x", if_absent=True)

    def test_copy_makes_a_second_name(self, store) -> None:
        _raises(ReadOnlyError, store.copy, "a", "b")

    def test_move_can_be_repeated(self, store) -> None:
        _raises(ReadOnlyError, store.move, "a", "b")

    def test_delete_can_be_repeated(self, store) -> None:
        _raises(ReadOnlyError, store.delete, ["a"])
        store.delete([])
        store.sync("", "b", "never")

    def test_descriptions_travel(self, store) -> None:
        store.put("a", b"one")
        blob = store.blob("a")
        again = pickle.loads(pickle.dumps(blob))
        assert (bytes(again.ranges(_ints(0), _ints(3))[0]), again.token) == (b"one", blob.token)
        real = open_store(store.root)
        assert pickle.loads(pickle.dumps(real)) == real

    def test_changed_bytes_are_noticed(self, store) -> None:
        """They are not changed: a commit stays what it is, and the next look sees the next one."""
        store.put("shard", b"before")
        blob = store.blob("shard")
        store.put("shard", b"after!!")
        assert bytes(blob.ranges(_ints(0), _ints(6))[0]) == b"before"
        assert store.blob("shard").token != blob.token
        assert bytes(store.blob("shard").ranges(_ints(0), _ints(7))[0]) == b"after!!"

    def test_nobody_asks_for_more_than_the_protocol(self, store) -> None:
        _raises(ReadOnlyError, sl.create, store.root, samples.arm_schema())


@pytest.mark.parametrize(
    ("text", "repo", "revision", "path"),
    [
        ("hf://datasets/a/b", "a/b", None, ""),
        ("hf://datasets/a/b@v1.0/c/d", "a/b", "v1.0", "c/d"),
        ("hf://datasets/a/b@refs/convert/parquet/c", "a/b", "refs/convert/parquet", "c"),
        ("hf://datasets/a/b@refs%2Fpr%2F7", "a/b", "refs/pr/7", ""),
        ("hf://datasets/a/b@feature%2Fx/c", "a/b", "feature/x", "c"),
    ],
)
def test_addresses_are_those_of_the_official_file_system(text, repo, revision, path) -> None:
    place = parse(text)
    assert (place.repo, place.revision, place.path) == (repo, revision, path)
    assert parse(str(place)) == place


@pytest.mark.parametrize(
    "text",
    ["hf://datasets", "hf://datasets/squad", "hf://models/a/b", "hf://datasets/a/..", "hf://datasets/a/b@", "hf://",
     "hf://datasets/a/b@x y", "hf://datasets/a@v/b", "hf://datasets/a b/c", "hf://datasets/a/b@../c",
     "hf://datasets/a/b/../c", "hf://datasets/a/b/c//d"],
)  # fmt: skip
def test_addresses_of_nothing_are_refused(text) -> None:
    with pytest.raises(ValueError, match="hf://datasets/owner/name"):
        parse(text)


def test_the_official_client_and_we_read_the_same(hub) -> None:
    repo = hub.repo("owner/arm", {"large.bin": DATA, "small.txt": b"small", "deep/er/ü %41.bin": DATA[:5000]})
    hub.page = 2  # a listing comes in pages
    api = huggingface_hub.HfApi(endpoint=hub.endpoint)
    store = open_store("hf://datasets/owner/arm")
    entries = [e for e in api.list_repo_tree("owner/arm", recursive=True, repo_type="dataset") if hasattr(e, "blob_id")]
    assert list(store.list()) == sorted((entry.path, entry.size) for entry in entries)
    for path, _ in store.list():
        official = Path(api.hf_hub_download("owner/arm", path, repo_type="dataset", local_dir=f"{cache()}/x"))
        assert read_all(store.blob(path)) == official.read_bytes()
    assert store.pinned() == f"hf://datasets/owner/arm@{repo.refs['main']}"


def cache() -> str:
    return huggingface_hub.constants.HF_HUB_CACHE


def test_only_ranges_are_fetched_and_the_login_stays_with_the_hub(hub) -> None:
    repo = hub.repo("owner/arm", {"large.bin": DATA}, private=True)
    blob = open_blob("hf://datasets/owner/arm/large.bin")
    assert blob.location == f"hf://datasets/owner/arm@{repo.refs['main']}/large.bin"
    hub.asked.clear()
    for start in (10, 1_500_000, 700_000):
        [part] = blob.ranges(_ints(start), _ints(start + 5))
        assert bytes(part) == DATA[start : start + 5]
    assert [login for _, _, login in hub.asked] == ["Bearer hf_reader"]  # once: the signed address is used again
    assert len(hub.stored) == 3
    assert {login for _, _, login in hub.stored} == {None}


def test_a_redirect_within_the_hub_keeps_the_login(hub) -> None:
    hub.repo("owner/new", {"small.txt": b"small", "large.bin": DATA}, private=True)
    hub.moved["owner/old"] = "owner/new"
    for path, data in (("small.txt", b"small"), ("large.bin", DATA)):
        assert read_all(open_blob(f"hf://datasets/owner/old/{path}")) == data
    assert {login for _, _, login in hub.stored} == {None}


def test_a_signed_address_that_lapsed_is_asked_for_again(hub) -> None:
    hub.repo("owner/arm", {"large.bin": DATA})
    blob = open_blob("hf://datasets/owner/arm/large.bin")
    blob.ranges(_ints(0), _ints(5))
    hub.lapsed = 1
    assert bytes(blob.ranges(_ints(5), _ints(9))[0]) == DATA[5:9]
    hub.lapsed = 100
    with pytest.raises(OSError, match="storage of the Hub answers HTTP 403") as error:
        blob.ranges(_ints(9), _ints(12))
    assert "SIGNED" not in str(error.value)
    assert "SIGNED" not in repr(blob)
    assert b"SIGNED" not in pickle.dumps(blob)


def test_a_busy_hub_is_asked_again_and_then_said_to_be(hub, monkeypatch) -> None:
    hub.repo("owner/arm", {"small.txt": b"small"})
    blob = open_blob("hf://datasets/owner/arm/small.txt")
    waits = []
    monkeypatch.setattr(web.time, "sleep", waits.append)
    hub.busy = [(429, {"Retry_After": "7"}), (503, {})]
    assert read_all(blob) == b"small"
    assert waits[0] == 7
    hub.busy = [(429, {"RateLimit": '"resolvers";r=0;t=42'})] * 9
    with pytest.raises(OSError, match=r"asked too often .* in 42 s"):
        read_all(blob)
    hub.busy = []


def test_what_is_opened_stays_at_its_commit(hub, tmp_path) -> None:
    ds = sl.create(tmp_path / "arm", samples.arm_schema())
    ds.append(list(samples.arm_episodes(4)))
    repo = hub.upload("owner/arm", tmp_path / "arm")
    remote = sl.open("hf://datasets/owner/arm")
    ds.append(list(samples.arm_episodes(2, first=4)))
    before = dict(repo.commits[repo.refs["main"]])
    repo.commit({**dict.fromkeys(before), **files_in(tmp_path / "arm")})
    assert len(remote) == len(remote.to_arrow()) == 4
    assert len(sl.open("hf://datasets/owner/arm")) == 6
    assert len(sl.open(remote.location)) == 4


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("large", [False, True])
def test_a_dataset_trains_from_the_hub(hub, tmp_path, large) -> None:
    ds = sl.create(tmp_path / "arm", samples.arm_schema())
    ds.append(list(samples.arm_episodes(6)))
    hub.upload("owner/arm", tmp_path / "arm")
    remote = sl.open("hf://datasets/owner/arm@main")
    assert remote.validate(depth="rows").ok
    window = {"action": range(4)}
    batches = [
        list(sl.Loader(one, window=window, batch_size=8, seed=3, cache=sl.Cache(tmp_path / "cache") if large else None))
        for one in (ds, remote)
    ]
    assert len(batches[0]) == len(batches[1]) > 2
    for here, there in zip(*batches, strict=True):
        np.testing.assert_array_equal(here["action"], there["action"])
    with pytest.raises(ReadOnlyError, match="push"):
        remote.append(list(samples.arm_episodes(1, first=9)))


def test_plain_parquet_is_scanned(hub, tmp_path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "x.parquet")
    hub.repo("owner/plain", {"data/x.parquet": (tmp_path / "x.parquet").read_bytes()})
    assert sl.scan("hf://datasets/owner/plain").to_arrow()["a"].to_pylist() == [1, 2, 3]
    assert sl.scan("hf://datasets/owner/plain/data/x.parquet").to_arrow().num_rows == 3


def test_nothing_is_converted_into_the_hub(hub, tmp_path) -> None:
    ds = sl.create(tmp_path / "arm", samples.arm_schema())
    ds.append(list(samples.arm_episodes(2)))
    for call in (
        lambda: sl.convert(ds, "hf://datasets/owner/new", progress=False),
        lambda: sl.convert(ds, "hf://datasets/owner/new", to="huggingface", progress=False),
        lambda: sl.create("hf://datasets/owner/new", samples.arm_schema()),
        lambda: sl.repack(ds, "hf://datasets/owner/new"),
    ):
        with pytest.raises(ReadOnlyError, match="seqlake push"):
            call()


def test_mds_and_lerobot_open_from_the_hub(hub, tmp_path) -> None:
    with sl.create(out=str(tmp_path / "mds"), columns={"x": "int", "text": "str"}, format="mds") as out:
        for number in range(50):
            out.write({"x": number, "text": "t" * number})
    hub.upload("owner/mds", tmp_path / "mds")
    seen = sl.scan("hf://datasets/owner/mds")
    assert seen.to_arrow()["x"].to_pylist() == list(range(50))
    by_hand.write(tmp_path / "robot", by_hand.four(), "v3.0")
    hub.upload("owner/robot", tmp_path / "robot")
    remote, local = sl.open("hf://datasets/owner/robot"), sl.open(tmp_path / "robot")
    assert remote.to_arrow().equals(local.to_arrow())
    camera = next(name for name, one in remote.schema.items() if one.medium == "video")
    np.testing.assert_array_equal(remote[0][camera][2], local[0][camera][2])
    out = sl.convert("hf://datasets/owner/robot", tmp_path / "out", workers=1, progress=False)
    assert out.validate(depth="decode").ok


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_may_read_the_hub(hub) -> None:
    hub.repo("owner/arm", {"a": DATA, "b/c": b"small"})
    store = open_store("hf://datasets/owner/arm")
    assert bytes(store.blob("a").ranges(_ints(0), _ints(3))[0]) == DATA[:3]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            data = bytes(store.blob("a").ranges(_ints(5), _ints(9))[0]) + read_all(store.blob("b/c"))
            os.write(writing, data)
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == DATA[5:9] + b"small"
    os.close(reading)


def test_errors_say_what_to_do(hub, monkeypatch) -> None:
    hub.repo("owner/gated", {"a": b"x"}, gated=True)
    hub.repo("owner/secret", {"a": b"x"}, private=True)
    hub.repo("owner/open", {"a": b"x"})
    with pytest.raises(AccessDeniedError, match=r"gated.*Accept them at http://127"):
        open_blob("hf://datasets/owner/gated/a")
    with pytest.raises(DatasetNotFoundError, match=r"No dataset owner/nothing.*token that it was asked with"):
        sl.open("hf://datasets/owner/nothing")
    with pytest.raises(DatasetNotFoundError, match=r"no branch, tag or commit 'v9'"):
        sl.open("hf://datasets/owner/open@v9")
    with pytest.raises(FileNotFoundError, match="not there"):
        open_blob("hf://datasets/owner/open/b")
    with pytest.raises(FileNotFoundError, match="not there"):
        open_store("hf://datasets/owner/open").blob("b/c")
    monkeypatch.delenv("HF_TOKEN")
    for call in (sl.open, sl.scan):
        with pytest.raises(DatasetNotFoundError, match=r"nobody is logged in.*hf auth login"):
            call("hf://datasets/owner/secret")
    with pytest.raises(AccessDeniedError, match=r"does not take the token") as error:
        sl.open("hf://datasets/owner/open", storage={"hf_token": "hf_WRONG"})
    assert "WRONG" not in str(error.value)
    assert open_store("hf://datasets/owner/open", storage={"hf_token": "false"}).blob("a").size == 1


def test_a_server_that_lies_about_sizes_is_not_believed(hub) -> None:
    repo = hub.repo("owner/arm", {"large.bin": DATA})
    blob = open_blob("hf://datasets/owner/arm/large.bin")
    repo.commits[repo.refs["main"]]["large.bin"] = DATA[:5000]  # what no commit does
    with pytest.raises(ShardChangedError):
        blob.ranges(_ints(0), _ints(5))


@pytest.mark.parametrize(
    "listed",
    [b"no json", b"[7]", b'[{"type": "file", "path": "a", "oid": "x", "size": -1}]', b'[{"type": "file"}]',
     b'[{"type": "file", "path": "a", "oid": "x", "size": 99999999999999999999999}]', b"null", b'{"sha": "main"}'],
)  # fmt: skip
def test_answers_that_make_no_sense_are_errors_of_ours(hub, listed) -> None:
    repo = hub.repo("owner/arm", {"a": b"x"})
    store = open_store(f"hf://datasets/owner/arm@{repo.refs['main']}")
    hub.replies["/tree/"] = listed
    for call in (lambda: store.blob("a"), lambda: list(store.list())):
        with pytest.raises(OSError, match="cannot be used|no commit|not there"):
            call()
    hub.replies = {"/api/datasets/": listed}
    with pytest.raises(OSError, match="cannot be used|no commit"):
        open_store("hf://datasets/owner/arm").pinned()


def test_names_that_lead_out_are_refused(hub) -> None:
    repo = hub.repo("owner/arm", {"a": b"x"})
    hub.replies["/tree/"] = b'[{"type": "file", "path": "../../other/b/x", "oid": "x", "size": 3}]'
    store = open_store(f"hf://datasets/owner/arm@{repo.refs['main']}")
    for path, _ in store.list():
        with pytest.raises(UnsafeReferenceError):
            store.blob(path)


def test_a_hub_that_is_not_there(hub, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="127.0.0.1:9 does not answer"):
        sl.open("hf://datasets/owner/arm")


def test_secrets_are_never_printed(hub) -> None:
    hub.tokens["hf_HUSH"] = "read"
    hub.repo("owner/arm", {"a": b"x"})
    store = open_store("hf://datasets/owner/arm", storage={"hf_token": "hf_HUSH"})
    blob = store.blob("a")
    texts = [repr(store), repr(blob), blob.location, store.pinned(), repr(vars(store)), repr(blob._hub)]
    with pytest.raises(FileNotFoundError) as error:
        store.blob("missing")
    texts += [str(error.value), repr(error.value)]
    assert not any("HUSH" in text for text in texts)
    assert ("GET", f"/datasets/owner/arm/resolve/{store.pinned().partition('@')[2]}/a", "Bearer hf_HUSH") in (
        read_all(blob) and hub.asked
    )


@pytest.mark.skipif(
    huggingface_hub.__version__.startswith("1."), reason="huggingface_hub 1 does not keep what a commit holds"
)
def test_what_was_downloaded_is_read_from_disk_and_without_a_network(hub, tmp_path, monkeypatch) -> None:
    ds = sl.create(tmp_path / "arm", samples.arm_schema())
    ds.append(list(samples.arm_episodes(3)))
    hub.upload("owner/arm", tmp_path / "arm")
    online = sl.open("hf://datasets/owner/arm")
    api = huggingface_hub.HfApi(endpoint=hub.endpoint)
    api.snapshot_download("owner/arm", repo_type="dataset", cache_dir=cache())
    hubs._TREES.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    offline = sl.open("hf://datasets/owner/arm")
    assert offline.location == online.location
    assert offline.fingerprint == online.fingerprint
    assert offline.to_arrow().equals(ds.to_arrow())
    assert hub.asked == []
    with pytest.raises(DatasetNotFoundError, match=r"HF_HUB_OFFLINE is set.*hf download --repo-type dataset owner/o"):
        sl.open("hf://datasets/owner/other")


def test_a_part_that_was_downloaded_is_not_taken_for_all(hub, tmp_path, monkeypatch) -> None:
    hub.repo("owner/arm", {"data/a.parquet": DATA, "data/b.parquet": DATA})
    api = huggingface_hub.HfApi(endpoint=hub.endpoint)
    api.hf_hub_download("owner/arm", "data/a.parquet", repo_type="dataset", cache_dir=cache())
    hubs._TREES.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    store = open_store("hf://datasets/owner/arm")
    assert store.blob("data/a.parquet").size == len(DATA)
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE"):
        list(store.list())
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE"):
        store.blob("data/b.parquet")


def test_without_the_client_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"seqlake\[hub\]"):
        open_blob("hf://datasets/owner/arm/a")


def test_datasets_elsewhere_may_name_the_hub_unless_buckets_are_named(hub, tmp_path) -> None:
    hub.repo("owner/films", {"a.bin": DATA})
    ds = sl.create(tmp_path / "d", {"log": sl.ColumnType("mcap")})
    ds.append([{"sequence_id": "a", "log": "hf://datasets/owner/films/a.bin"}])
    assert ds["a"]["log"].read() == DATA
    with pytest.raises(UnsafeReferenceError, match="allow_buckets"):
        sl.open(tmp_path / "d", allow_buckets=["hf://datasets/owner/other"])["a"]["log"].read()
    assert sl.open(tmp_path / "d", allow_buckets=["hf://datasets/owner/films"])["a"]["log"].read() == DATA


def test_a_process_of_its_own_asks_the_same_hub(hub, tmp_path) -> None:
    hub.repo("owner/arm", {"a": b"abcdef"}, private=True)
    code = "import seqlake.files.stores as s; print(s.read_all(s.open_blob('hf://datasets/owner/arm/a')))"
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "hf_reader", "HF_HOME": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
    assert said.stdout.strip() == "b'abcdef'"
