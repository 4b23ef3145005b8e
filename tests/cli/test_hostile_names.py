"""Names, ids and texts of a dataset are its maker's: none of them steers the terminal, whichever command shows them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pty
import re
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import seqlake as sl
from seqlake import plugins
from seqlake.cli import main
from seqlake.errors import in_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVIL = "a\x1b[2J\x9b31m\u202e\u2066\r\x07\x7fz\nseqlake: error: <script>alert(1)</script>"
# Independent of the product's own list: controls and what Unicode says turns the direction.
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> bool:
    """No control characters, and no line that a name has begun."""
    return RAW.search(text) is None and not text.startswith("seqlake: error: <") and "\nseqlake: error: <" not in text


@pytest.fixture
def evil(tmp_path: Path) -> sl.Dataset:
    """Whatever a maker of datasets may name."""
    column, split = f"c{EVIL}", "split"
    schema = sl.Schema(
        {
            column: sl.Trajectory(dim=2, fps=10, units=EVIL, names=[EVIL, "b"]),
            f"task{EVIL}": pa.string(),
            split: pa.string(),
            f"log{EVIL}": sl.ColumnType("mcap", note=EVIL),
            "cam": sl.ColumnType("video", fps=10),
        }
    )
    ds = sl.create(tmp_path / "evil", schema)
    rows = [
        {
            "sequence_id": f"{number}{EVIL}",
            column: np.full((5, 2), np.nan if number else 1.0),
            f"task{EVIL}": EVIL,
            split: f"s{EVIL}",
            f"log{EVIL}": f"files/{EVIL}",
            "cam": f"gone{EVIL}.mp4",
        }
        for number in range(3)
    ]
    ds.append(rows)
    ds.add_column("more", pa.int64())
    return sl.open(ds.location)


def commands(ds: sl.Dataset, out: Path) -> Iterator[list[str]]:
    """Every command, in the ways that print something, most of which fail."""
    place, name = ds.location, ds[0].id
    column = ds.schema.names[1]
    for form in (["--json"], []):
        yield ["ls", place, *form]
        yield ["schema", place, *form]
        yield ["versions", place, *form]
        yield ["info", place, *form]
        yield ["files", place, *form]
        yield ["show", place, name, *form]
        yield ["stats", place, *form]
        yield ["sql", place, "SELECT * FROM dataset", *form]
        yield ["validate", place, *form]
        yield ["subset", place, str(out / "subset"), "--dry-run", *form]
        yield ["subset", place, str(out / "subset"), "--ids", f"no{EVIL}", *form]
        yield ["subset", place, str(out / "subset"), *form]
        yield ["convert", place, str(out / "converted"), *form]
        yield ["convert", place, str(out / "mds"), "--to", "mds", *form]
        yield ["repack", place, str(out / "repacked"), *form]
        yield ["merge", place, place, str(out / "merged"), *form]
        yield ["trim", place, str(out / "trimmed"), "--start", "1", *form]
        yield ["segment", place, str(out / "segmented"), "--by", f"no{EVIL}", *form]
        yield ["segment", place, str(out / "segmented"), "--length", "2", *form]
        yield ["split", place, str(out / "split"), *form]
        yield ["relocate", place, "--from", "files", "--to", EVIL, "--dry-run", *form]
        yield ["vacuum", place, "--dry-run", *form]
        yield ["compact", place, *form]
        yield ["index", place, *form]
        yield ["adopt", place, *form]
        yield ["rollback", place, f"no{EVIL}", *form]
        yield ["tag", place, EVIL, *form]
        yield ["tag", place, "v1", "--version", f"no{EVIL}", *form]
        yield ["tag", place, EVIL, "--delete", *form]
        yield ["init", place, *form]
        yield ["label", place, EVIL, EVIL, *form]
        yield ["set", place, name, f"no{EVIL}=1", *form]
        yield ["set", place, name, f"task{EVIL}={EVIL}", "-m", "why", *form]
        yield ["rename", place, f"no{EVIL}", "other", *form]
        yield ["drop", place, f"no{EVIL}", *form]
        yield ["delete", place, "--where", f"no{EVIL}", *form]
        yield ["delete", place, "--where", "split IS NULL", *form]
        yield ["diff", place, *form]
        yield ["fold", place, "--dry-run", *form]
        yield ["resample", place, str(out / "resampled"), "--fps", "5", *form]
        yield ["resample", place, str(out / "resampled"), "--fps", "5", "--signals", f"no{EVIL}", *form]
        yield ["frames", place, name, "cam", str(out / "frames"), *form]
        yield ["bench", place, "--seconds", "0.1", *form]
        yield ["prepare", place, "--video", f"no{EVIL}=48x64", *form]
        yield ["prepare", place, "--video", "cam=48x64", "--codec", "raw", "--workers", "1", *form]
        yield ["prepare", place, "--drop", *form]
        yield ["doctor", *form]
    yield ["ls", place, "--columns", f"no{EVIL}"]
    yield ["ls", place, "--where", f"no{EVIL} ="]
    yield ["ls", str(out / EVIL.replace("/", "_"))]
    yield ["sql", place, f"SELECT {EVIL}"]
    yield ["sql", place, "SELECT * FROM dataset", "--explain"]
    yield ["show", place, f"no{EVIL}"]
    yield ["stats", place, "--columns", column]
    yield ["similar", place, name, "--by", column]
    yield ["--debug", "show", place, f"no{EVIL}"]
    yield [f"no{EVIL}"]


@pytest.fixture
def own_process() -> Iterator[None]:
    """What the command line sets up for the process that it is, taken back."""
    logger, shown = logging.getLogger("seqlake"), warnings.showwarning
    before = list(logger.handlers)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield
    warnings.showwarning = shown
    logger.handlers[:] = before


@pytest.mark.usefixtures("own_process")
def test_no_command_prints_what_steers_a_terminal(evil: sl.Dataset, tmp_path: Path) -> None:
    told, seen = [], set()
    for arguments in commands(evil, tmp_path):
        child = printed(arguments)
        seen.add(next((one for one in arguments if one in plugins.names("cli")), ""))
        told += [(arguments, stream[:300]) for stream in child if RAW.search(stream)]
        if "--json" in arguments:
            for line in (*child[0].splitlines(), *(one for one in child[1].splitlines() if one.startswith("{"))):
                assert isinstance(json.loads(line), dict), arguments
    assert not told
    assert seen >= set(plugins.names("cli")) - {
        "demo",
        "completion",
        "push",  # asks the hub, which is not here: see tests/stores
        "view",  # serves until it is ended: see tests/viewer
    }


def printed(arguments: list[str]) -> tuple[str, str]:
    """What a command prints on stdout and stderr, in this process but through its real entry."""
    with CliRunner().isolation() as (out, err, *_):
        with contextlib.suppress(SystemExit):
            main(arguments)
        return out.getvalue().decode(), err.getvalue().decode()


def test_pipes_get_ids_as_they_are_and_terminals_see_them(evil: sl.Dataset) -> None:
    command = [sys.executable, "-c", "from seqlake.cli import main; main()", "ls", evil.location, "-q"]
    piped = subprocess.run(command, check=True, capture_output=True).stdout
    assert piped.decode() == "".join(f"{one.id}\n" for one in evil)
    master, slave = pty.openpty()
    with subprocess.Popen(command, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            shown += part
            if not part:
                break
        assert process.wait() == 0
    os.close(master)
    lines = shown.decode().replace("\r\n", "\n").splitlines()
    assert lines == [in_line(one.id) for one in evil]
    assert all(harmless(line) for line in lines)


def test_what_prints_itself_is_harmless_too(evil: sl.Dataset) -> None:
    view, loader = evil[0], sl.Loader(evil, window={evil.schema.names[1]: [0]}, batch_size=1)
    report = evil.validate(depth="files")
    column = evil.schema.names[1]
    things = [evil, evil.where("true"), view, evil.schema, evil.schema[column], evil.schema[column].type, report]
    things += [*report, loader, loader.plan(), evil.versions(), view[evil.schema.names[4]], sl.Window({column: [0]})]
    for thing in things:
        assert harmless(repr(thing)), repr(thing)
        assert harmless(str(thing)), str(thing)
        page = getattr(thing, "_repr_html_", None)
        if page is not None:
            assert RAW.search(page()) is None
            assert "<script" not in page()
    for wrong in (lambda: evil[f"no{EVIL}"], lambda: evil.select(f"no{EVIL}"), lambda: evil.where(f"no{EVIL}")[0]):
        with pytest.raises((sl.errors.SeqlakeError, KeyError)) as raised:
            wrong()
        assert RAW.search(str(raised.value)) is None


def test_text_of_people_stays_what_it_is() -> None:
    for text in ("日本語　テキスト", "naïve – “quotes”", "👩‍👩‍👧‍👦 ok", "نص عربي", "עברית", "می‌خواهم", "a\nb"):
        assert visible(text) == text
    assert visible("\x1b[31m\x7f\x9b\u202e\u2028\ud800") == "\\x1b[31m\\x7f\\x9b\\u202e\\u2028\\ud800"
    assert in_line("a\nb") == "a\\nb"
