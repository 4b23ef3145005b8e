"""The plugs of `docs/how-to/write-a-plug.md` work as written, installed by entry points."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import seqlake as sl
from seqlake import media, plugins
from seqlake.errors import UnsafeReferenceError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-plug.md"
BLOCKS = dict(re.findall(r"^```py\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module", autouse=True)
def my_lab(tmp_path_factory: pytest.TempPathFactory):
    """The package of the page, installed for as long as these tests run."""
    folder = tmp_path_factory.mktemp("site")
    about = folder / "my_lab-1.0.dist-info"
    for path in (about, folder / "my_lab"):
        path.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-lab\nVersion: 1.0\n")
    toml = re.findall(r'^\[project.entry-points."(.*?)"\]\n(\w+) = "(.*?)"', PAGE.read_text(), re.MULTILINE)
    assert len(toml) == 3
    (about / "entry_points.txt").write_text("".join(f"[{group}]\n{name} = {place}\n" for group, name, place in toml))
    (folder / "my_lab" / "__init__.py").touch()
    for name, code in BLOCKS.items():
        if name.startswith("my_lab/"):
            (folder / name).write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
        forget()
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_lab"]:
        del sys.modules[name]
    forget()


def forget() -> None:
    importlib.invalidate_caches()
    plugins._installed.cache_clear()
    media._plugs.cache_clear()


def names() -> dict[str, object]:
    import io

    return {"__name__": "page", "np": np, "sl": sl, "Path": Path, "io": io}


def run(name: str) -> dict[str, object]:
    known = names()
    exec(compile(BLOCKS[name], f"{PAGE}: {name}", "exec"), known)
    return known


@pytest.mark.parametrize(
    ("name", "kind"),
    [("tests/test_takes.py", "TestTakes"), ("tests/test_frames.py", "TestFrames"), ("tests/test_box.py", "TestBox")],
)
def test_the_suites_of_the_page_pass(name: str, kind: str, tmp_path: Path) -> None:
    """Each law of the suite that the page's test inherits, with the page's own fixture."""
    suite = run(name)[kind]
    (fixture,) = (value for value in vars(suite).values() if type(value).__name__.startswith("Fixture"))
    make = fixture._get_wrapped_function()
    laws = [law for law in dir(suite) if law.startswith("test_")]
    assert len(laws) >= 5
    for number, law in enumerate(laws):
        folder = tmp_path / str(number)
        folder.mkdir()
        test = getattr(suite(), law)
        given = make(suite(), folder) if "tmp_path" in make.__code__.co_varnames else make(suite())
        marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        cases = [{mark.args[0]: value} for mark in marks for value in mark.args[1]] or [{}]
        wants_folder = "tmp_path" in test.__code__.co_varnames[: test.__code__.co_argcount]
        for case in cases:
            test(given, *([folder] if wants_folder else []), **case)


@pytest.mark.parametrize("name", ["use.py", "use_frames.py", "use_box.py"])
def test_what_the_page_does_with_them_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(name)


def test_a_dataset_that_lies_elsewhere_may_not_name_their_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sl.create("box://films.db", {"action": sl.Trajectory(dim=1)}).table.store.put("cam.png", b"a picture")
    ds = sl.create("sent", {"pic": sl.Image()})
    ds.append([{"sequence_id": "a", "pic": "box://films.db/cam.png"}])
    with pytest.raises(UnsafeReferenceError, match="of scheme 'box'"):
        sl.open("sent")["a"]["pic"].open()
    trusted = sl.open("sent", allow_buckets=["box://films.db"])
    assert trusted["a"]["pic"].open().read() == b"a picture"


def test_a_folder_of_theirs_is_known_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from seqlake.cli import main

    monkeypatch.chdir(tmp_path)
    run("use.py")
    for words in (["info", "recordings"], ["validate", "recordings", "--depth", "rows"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert not stop.value.code, capsys.readouterr().err
    assert "4 sequences" in capsys.readouterr().out
