from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqlake.errors import UnsafeReferenceError
from seqlake.files.locations import absolute, inside, is_local, join, local_path, parent, redacted, scheme, web_url

PARTS = st.lists(st.sampled_from(["a", "b", "..", ".", "files", "x y"]), min_size=1, max_size=8)


@given(PARTS, st.sampled_from(["/data/set", "s3://bucket/data/set"]))
def test_inside_counts_how_often_a_path_climbs(parts, root) -> None:
    depth = lowest = 0
    for part in parts:
        depth += {"..": -1, ".": 0}.get(part, 1)
        lowest = min(lowest, depth)
    location = join(root, "/".join(parts))
    if lowest >= 0:
        assert inside(root, location)
    if depth < 0:
        assert not inside(root, location)
    assert ".." not in location.split("/")


@pytest.mark.parametrize(
    ("root", "reference", "location"),
    [
        ("/data/set", "files/1.mp4", "/data/set/files/1.mp4"),
        ("/data/set", "/abs/1.mp4", "/abs/1.mp4"),
        ("/data/set", "file:///abs/1%20a.mp4", "/abs/1 a.mp4"),
        ("/data/set", "s3://b/1.mp4", "s3://b/1.mp4"),
        ("/data/set", "https://h/1.mp4?x=1", "https://h/1.mp4?x=1"),
        ("s3://b/set", "files/1.mp4", "s3://b/set/files/1.mp4"),
        ("s3://b/set", "../other/1.mp4", "s3://b/other/1.mp4"),
        ("s3://b/set", "../../../1.mp4", "s3://b/1.mp4"),
        ("s3://b", "files/1.mp4", "s3://b/files/1.mp4"),
        ("s3://b/set", "gs://c/1.mp4", "gs://c/1.mp4"),
    ],
)
def test_references_are_resolved_as_the_specification_says(root, reference, location) -> None:
    assert join(root, reference) == location


def test_schemes_and_paths() -> None:
    assert scheme("S3://b/x") == "s3"
    assert scheme("C:\\data") == "file"
    assert scheme("data/a:b") == "file"
    assert is_local("file:///x")
    assert not is_local("https://x/y")
    assert local_path("file:///a%20b/c") == Path("/a b/c")
    assert absolute("data/../x") == str(Path.cwd() / "x")
    assert absolute(Path("x")) == str(Path.cwd() / "x")
    assert absolute("s3://b/x//") == "s3://b/x"


def test_links_that_leave_are_outside(tmp_path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "set" / "link").symlink_to(tmp_path / "secret")
    assert not inside(str(tmp_path / "set"), str(tmp_path / "set" / "link"))
    assert not inside("/data/set", "/data/set2/x")
    assert not inside("s3://b/set", "s3://b/set2/x")
    assert not inside("s3://b/set", "/data")
    assert inside("/data/set", "/data/set")


HOSTILE = st.text(st.sampled_from(list("ab./\\%2eE:?#~ ü")), max_size=14)
ROOTS = ["/data/set", "s3://bucket/data/set", "https://host/data/set", "file:///data/set", "/", "s3://bucket"]


@given(st.sampled_from(ROOTS), HOSTILE)
def test_a_reference_is_below_the_root_or_said_to_be_outside(root, reference) -> None:
    """Judged by another reading: what a client does with the location."""
    location = join(root, reference)
    assert is_local(location) == (is_local(root) or reference.startswith("/"))
    if not inside(root, location):
        return
    if is_local(root):
        assert os.path.commonpath([local_path(root), os.path.normpath(local_path(location))]) == str(local_path(root))
    else:
        kept = location.replace("\\", "/") if scheme(root) == "https" else location
        for _ in range(2):
            assert kept == root or kept.startswith(root + "/")
            assert ".." not in kept.split("/")
            kept = kept.replace("%2e", ".").replace("%2E", ".") if scheme(root) == "https" else kept


@given(HOSTILE)
def test_what_escapes_by_quoting_is_outside_on_the_web(tail) -> None:
    assert not inside("https://host/set", "https://host/set/%2e%2E/other" + tail.replace("/", "").replace("\\", ""))
    assert not inside("https://host/set", "https://host/set/..\\other")
    assert not inside("https://host/set", "https://host.evil/set/x")
    assert inside("https://host/set", "HTTPS://HOST/set/x?sig=..%2F..")


def test_names_that_look_like_schemes_are_names() -> None:
    assert join("/set", "task: pick.mp4") == "/set/task: pick.mp4"
    assert join("/set", "C:\\x") == "/set/C:\\x" or os.name == "nt"
    assert join("s3://b/set", "a:b?c#d%20") == "s3://b/set/a:b?c#d%20"
    assert join("https://h/set", "a b%20.mp4") == "https://h/set/a%20b%2520.mp4"
    assert join("s3://b/set", "/abs/x") == join("s3://b/set", "file:/abs/x") == "/abs/x"
    with pytest.raises(UnsafeReferenceError):
        join("/set", "a\0b")


def test_file_uris() -> None:
    assert local_path("file:/a/b") == local_path("file://localhost/a/b") == local_path("FILE:///a/b") == Path("/a/b")
    assert local_path("file:///C:/x") == Path("C:/x")
    for wrong in ("file://elsewhere/a", "s3://b/x"):
        with pytest.raises(ValueError, match="file: URI"):
            local_path(wrong)


def test_addresses_are_shown_and_sent() -> None:
    assert redacted("https://me:pw@h/a?sig=1#x") == "https://h/a?..."
    assert redacted("s3://b/a?b") == "s3://b/a?b"
    assert redacted("/a?b") == "/a?b"
    assert parent("s3://b/a/c") == ("s3://b", "a/c")
    assert web_url("https://h/a b%20ü?x=1 2#frag") == "https://h/a%20b%20%C3%BC?x=1%202"
    assert absolute("s3://") == "s3://"
