from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from seqlake.errors import ReadOnlyError, ShardChangedError, UnsafeReferenceError
from seqlake.files import blobs
from seqlake.files.blobs import KeptMemory, LocalBlob, file_system, map_file
from seqlake.files.local import LocalStore, SystemCalls
from seqlake.files.stores import open_blob, open_store


class Calls(SystemCalls):
    """The order of the calls as text, and errors where asked: {"link": errno.ENOSPC}."""

    def __init__(self, **errors: int | BaseException) -> None:
        self.errors = errors
        self.log: list[str] = []

    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if name in {"create", "write", "fsync", "fsync_folder", "mkdir", "link", "rename", "rename_new", "unlink"}:

            def called(*arguments):
                self.log.append(" ".join([name, *(p.name for p in arguments if isinstance(p, os.PathLike))]))
                problem = self.errors.get(name)
                if isinstance(problem, BaseException):
                    raise problem
                if problem:
                    raise OSError(problem, os.strerror(problem), str(arguments[0]))
                return method(*arguments)

            return called
        return method


def files(store) -> list[str]:
    return [name for name, _ in LocalStore(store.root).list()]


def test_a_commit_makes_its_calls_in_the_order_that_a_power_loss_needs(tmp_path) -> None:
    """A marker, a copied-in file, a shard, the record, the commit, and what publishes it."""
    calls = Calls()
    store = LocalStore(tmp_path, calls=calls)
    for name in ["staged", "versions", "data", "files", "retired"]:
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "part-old").write_bytes(b"old")
    store.put("staged/T.json", b"{}", if_absent=True)
    store.put("files/cam.mp4", b"mp4", if_absent=True)
    store.sync("files")
    store.local("staged/part-T-0").write_bytes(b"shard")
    store.put("staged/part-T-0", store.local("staged/part-T-0"))
    store.sync("staged")
    store.sync("versions")
    store.put("versions/7", b"{}", if_absent=True, temporary="staged/T.tmp")
    store.sync("versions")
    store.move("staged/part-T-0", "data/part-T-0.parquet")
    store.sync("data")
    store.put("mixtrain.json", b"{}", temporary="staged/T.tmp")
    store.sync("")
    store.move("data/part-old", "retired/part-old")
    store.sync("data")
    store.delete(["staged/T.json"])
    assert calls.log == [
        "create T.json", "write", "fsync",
        "create cam.mp4", "write", "fsync", "fsync_folder files",
        "fsync", "fsync_folder staged",
        "fsync_folder versions", "create T.tmp", "write", "fsync", "link T.tmp 7", "unlink T.tmp",
        "fsync_folder versions",
        "rename part-T-0 part-T-0.parquet", "fsync_folder data",
        "create T.tmp", "write", "fsync", "rename T.tmp mixtrain.json", f"fsync_folder {tmp_path.name}",
        "rename part-old part-old", "fsync_folder data",
        "unlink T.json",
    ]  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["create", "write", "fsync", "link", "mkdir"])
@pytest.mark.parametrize("options", [{}, {"temporary": "staged/T.tmp"}])
def test_a_disk_that_fails_at_any_call_leaves_nothing(tmp_path, call, options, number) -> None:
    if call == "link" and not options:
        pytest.skip("a name that is used once needs no link")
    store = LocalStore(tmp_path, calls=Calls(**{call: number}))
    with pytest.raises(OSError, match=os.strerror(number)) as error:
        store.put("v/1", b"x" * 100, if_absent=True, **options)
    assert error.value.errno == number
    assert files(store) == []
    assert store.free() > 0


def test_ctrl_c_leaves_nothing_half_written(tmp_path) -> None:
    store = LocalStore(tmp_path, calls=Calls(fsync=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        store.put("data/large", b"x" * 100)
    assert files(store) == []


def test_a_failed_replacement_leaves_what_was_there(tmp_path) -> None:
    LocalStore(tmp_path).put("a", b"before")
    store = LocalStore(tmp_path, calls=Calls(rename=errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        store.put("a", b"after")
    assert files(store) == ["a"]
    assert bytes(store.blob("a").view()) == b"before"


def test_what_is_committed_stays_committed_when_its_temporary_name_cannot_go(tmp_path) -> None:
    """And the next use of that name does not write into the committed bytes, which it links to."""
    store = LocalStore(tmp_path, calls=Calls(unlink=errno.EIO))
    store.put("v/1", b"committed", if_absent=True, temporary="T.tmp")
    assert files(store) == ["T.tmp", "v/1"]
    LocalStore(tmp_path).put("mixtrain.json", b"{}", temporary="T.tmp")
    assert bytes(store.blob("v/1").view()) == b"committed"


def test_a_link_that_nfs_made_and_denied_is_a_link(tmp_path) -> None:
    class Nfs(SystemCalls):
        def link(self, source, target):
            super().link(source, target)
            raise FileExistsError(errno.EEXIST, "the first answer was lost", str(target))

    store = LocalStore(tmp_path, calls=Nfs())
    store.put("v/1", b"mine", if_absent=True, temporary="T.tmp")
    assert files(store) == ["v/1"]


RIVAL = """
import sys
from seqlake.files.local import LocalStore
store = LocalStore(sys.argv[1])
sys.stdin.readline()
for n in range(50):
    try:
        store.put(f"v/{n:03}", sys.argv[2].encode(), if_absent=True, temporary=f"staged/{sys.argv[2]}.tmp")
        print(n)
    except FileExistsError:
        pass
"""


def test_of_rival_processes_exactly_one_wins_each_name(tmp_path) -> None:
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", RIVAL, str(tmp_path), str(k)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in range(4)
    ]
    won = [rival.communicate("go\n", timeout=60)[0].split() for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0] * 4
    assert sorted(int(n) for names in won for n in names) == list(range(50))
    store = LocalStore(tmp_path)
    assert files(store) == [f"v/{n:03}" for n in range(50)]
    for k, names in enumerate(won):
        assert all(bytes(store.blob(f"v/{int(n):03}").view()) == str(k).encode() for n in names)


def test_a_folder_of_a_link_is_listed_where_that_is_allowed_and_a_loop_ends(tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "part.parquet").write_bytes(b"x")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "again").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "broken").symlink_to(tmp_path / "nowhere")
    assert list(LocalStore(tmp_path / "set", allow_outside=True).list()) == [("data/part.parquet", 1)]


def test_a_file_where_a_folder_should_be_is_an_error_of_its_own(tmp_path) -> None:
    store = LocalStore(tmp_path)
    store.put("data", b"a file")
    with pytest.raises(OSError, match="data"):
        store.put("data/part", b"x")
    with pytest.raises(UnsafeReferenceError, match="damaged"):
        store.sync("../elsewhere")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="gives up its rights in a child")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_folder_of_somebody_else_is_read_only(tmp_path) -> None:
    child = os.fork()
    if not child:
        os.chdir("/")
        tmp_path.chmod(0o555)
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            LocalStore(tmp_path).put("a", b"x")
        except (ReadOnlyError, FileNotFoundError) as error:
            os._exit(0 if isinstance(error, ReadOnlyError) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    tmp_path.chmod(0o755)


def test_many_maps_take_no_descriptors(tmp_path) -> None:
    for n in range(200):
        (tmp_path / str(n)).write_bytes(bytes([n]) * 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, hard))
    try:
        views = [open_blob(tmp_path / str(n)).view() for n in range(200)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [view[9] for view in views] == list(range(200))


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_map_lives_as_long_as_somebody_looks(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(blobs, "HELD", KeptMemory(most_maps=2))
    path = tmp_path / "mapped-shard"
    path.write_bytes(b"abc" * 1000)

    def maps() -> int:
        return sum(b"mapped-shard" in line for line in Path("/proc/self/maps").read_bytes().splitlines())

    blob = LocalBlob(path)
    part = blob.view()[3:6]
    assert blob.view() is LocalBlob(path).view()
    assert maps() == 1
    for n in range(3):
        (tmp_path / str(n)).write_bytes(b"other")
        LocalBlob(tmp_path / str(n)).view()
    gc.collect()
    assert (bytes(part), maps()) == (b"abc", 1)
    del part
    gc.collect()
    assert maps() == 0
    with pytest.raises(TypeError):
        blob.view()[0] = 1


def replaced(path: Path) -> None:
    """Another file has its name."""
    other = path.with_name("other")
    other.write_bytes(b"x")
    other.replace(path)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("gone", [Path.unlink, replaced])
def test_the_disk_gets_back_what_others_removed(tmp_path, monkeypatch, gone) -> None:
    """A vacuum of another process: a process that goes on reading new files does not hold the old ones for ever."""
    monkeypatch.setattr(blobs, "HELD", KeptMemory())
    old = [tmp_path / f"old-{n}" for n in range(20)]
    for path in old:
        path.write_bytes(b"abc" * 1000)
        LocalBlob(path).view()
    part = LocalBlob(old[0]).view()[3:6]
    for path in old[:-1]:
        gone(path)
    for n in range(10):
        (tmp_path / str(n)).write_bytes(b"other")
        LocalBlob(tmp_path / str(n)).view()
    gc.collect()
    mapped = [line.split()[5] for line in Path("/proc/self/maps").read_bytes().splitlines() if b"/old-" in line]
    assert sorted(mapped) == [os.fsencode(old[0]), os.fsencode(old[-1])]
    assert bytes(part) == b"abc"


def test_copies_are_bounded_by_their_bytes() -> None:
    held = KeptMemory(most_copied=100)
    for n in range(5):
        held.keep(n, memoryview(bytes(40)), copied=True)
    assert [held.get(n) is not None for n in range(5)] == [False, False, False, True, True]
    held.keep("huge", memoryview(bytes(1000)), copied=True)
    assert (len(held), held.get("huge").nbytes) == (1, 1000)


def test_a_copy_is_kept_for_its_blob_and_goes_with_it(tmp_path, monkeypatch) -> None:
    held = KeptMemory()
    monkeypatch.setattr(blobs, "HELD", held)
    (tmp_path / "x").write_bytes(b"abc")
    blob, other = LocalBlob(tmp_path / "x", mapped=False), LocalBlob(tmp_path / "x", mapped=False)
    assert blob.view() is blob.view()
    assert other.view() is not blob.view()
    assert len(held) == 2
    del blob
    gc.collect()
    assert len(held) == 1


def test_a_system_without_room_says_so(tmp_path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with (tmp_path / "x").open("rb") as file, pytest.raises(OSError, match="mapping"):
        map_file(file.fileno(), 1 << 60)
    assert blobs.MOST_MAPS < 65_530


@pytest.mark.parametrize("mapped", [True, False])
def test_a_truncated_file_raises_at_every_door(tmp_path, mapped) -> None:
    path = tmp_path / "shard"
    path.write_bytes(bytes(1 << 20))
    blob = LocalBlob(path, mapped=mapped)
    blob.view()
    os.truncate(path, 10)
    for look in (blob.view, lambda: blob.ranges(np.array([500_000]), np.array([500_010]))):
        with pytest.raises(ShardChangedError, match="open the dataset again"):
            look()


def test_a_replaced_file_of_the_same_size_and_time_is_another(tmp_path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"one")
    blob = LocalBlob(path)
    times = path.stat()
    (tmp_path / "new").write_bytes(b"two")
    os.utime(tmp_path / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "new").replace(path)
    with pytest.raises(ShardChangedError):
        blob.view()


def test_network_file_systems_are_read_and_not_mapped(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(blobs, "file_system", lambda _: "nfs4")
    monkeypatch.setattr(blobs, "map_file", lambda *_: pytest.fail("mapped"))
    (tmp_path / "x").write_bytes(b"over the network")
    assert bytes(LocalBlob(tmp_path / "x").view()) == b"over the network"


def test_mmap_can_be_forbidden(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(blobs, "map_file", lambda *_: pytest.fail("mapped"))
    (tmp_path / "x").write_bytes(b"x")
    assert bytes(open_store(tmp_path, storage={"mmap": "false"}).blob("x").view()) == b"x"
    assert bytes(open_blob(tmp_path / "x", storage={"mmap": "false"}).view()) == b"x"


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_system_names_its_file_systems() -> None:
    assert file_system(Path("/proc").stat().st_dev) == "proc"
    assert file_system(0xFFFFFF) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
@pytest.mark.parametrize("char", ["\r", "\v", "\f", "\x1c", "\x1e", "\x85", "\u2028"])
def test_names_of_mounts_hide_no_file_system(monkeypatch, char) -> None:
    """Of the characters that may end a line, Linux escapes the line feed alone."""
    device = os.makedev(77, ord(char) % 200)
    lines = f"1 2 9:9 / / rw - ext4 x rw\n1 2 77:{os.minor(device)} / /mnt/a{char}b rw - nfs4 host:/x rw\n"
    monkeypatch.setattr(Path, "read_bytes", lambda _: lines.encode())
    assert file_system(device) == "nfs4"
