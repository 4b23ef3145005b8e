"""Arguments as newcomers give them: whatever is wrong is said in our words, and what would be right beside it."""

from __future__ import annotations

import json
import shutil
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import InvalidMetadataError, SeqlakeError

WRONG: list[Any] = [
    0, -1, 1.5, True, "x", "", b"x", ["x"], [1], {"x": 1}, {1: 2}, {"x": None}, float("nan"), object(), len,
    np.zeros(2), ("e",), {"e", "n"},
]  # fmt: skip
OPTIONS = {
    "mds": ["split", "encodings", "allow_pickle", "shard_bytes", "storage", "columns", "column_types"],
    "csv": ["split", "encodings", "allow_pickle", "shard_bytes", "columns"],
    "jsonl": ["split", "encodings", "shard_bytes", "columns"],
    "l5kit": ["view", "chunk_bytes", "storage", "columns", "history"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    l5 = pytest.importorskip("seqlake.compat.l5kit")
    pytest.importorskip("numcodecs")
    home = tmp_path_factory.mktemp("folders")
    columns = {"e": "str", "n": "int"}
    formats = {"mds": {"format": "mds"}, "csv": {"format": "xsv", "separator": ","}, "jsonl": {"format": "jsonl"}}
    for name, options in formats.items():
        with sl.create(home / name, columns, **options) as writer:
            writer.write({"e": "a", "n": 1})
    l5.create_store(str(home / "l5kit"), l5.sized(scenes=1, frames=2, agents=4))
    return {name: home / name for name in OPTIONS}


def told(call: Any) -> str:
    """What becomes of a call, if it is neither read nor said by us."""
    try:
        call()
    except SeqlakeError:
        return ""
    except (TypeError, ValueError, LookupError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "" if "seqlake" in last.filename and (last.line or "").startswith("raise ") else f"{last}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_a_format_are_told_in_our_words(folders: dict[str, Path], name: str) -> None:
    bare = {
        (option, repr(value)): found
        for option in OPTIONS[name]
        for value in WRONG
        if not (option == "view" and isinstance(value, np.ndarray))
        if (found := told(lambda option=option, value=value: sl.scan(folders[name], **{option: value}).to_arrow()))
    }
    assert bare == {}


def test_locations_that_are_none_are_told_in_our_words(folders: dict[str, Path]) -> None:
    wrong = [*WRONG, None, "\0", "a\0b", b"mds", Path("nowhere"), folders["mds"] / "index.json", ["a.parquet"], "s3://"]
    wrong += [{"x": [1], "y": [1, 2]}, {"x": [10**30]}]
    for call in (sl.scan, sl.open):
        found = {repr(one): why for one in wrong if (why := told(lambda call=call, one=one: call(one)))}
        assert found == {}, call


def test_an_option_that_a_format_does_not_take_names_those_that_it_does(folders: dict[str, Path]) -> None:
    with pytest.raises(TypeError, match=r"'mds' takes no option 'columns'; it takes allow_outside, .*encodings"):
        sl.scan(folders["mds"], columns=["e"])
    with pytest.raises(ValueError, match=r"allow_pickle: expected a list of columns as \['meta'\], found True"):
        sl.scan(folders["mds"], allow_pickle=True)
    with pytest.raises(ValueError, match=r"chunk_bytes: expected a number of bytes.*'1GB'"):
        sl.scan(folders["l5kit"], chunk_bytes="1GB")


HALVES = {
    "mds": {"column_names": ["\ud800", "n"]},
    "csv": {"column_names": ["e", "\ud800"], "newline": "\ud800"},
    "jsonl": {"columns": {"\ud800": "str"}, "newline": "\ud800"},
}


@pytest.mark.parametrize("name", HALVES)
def test_halves_of_characters_in_an_index_are_no_names(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    """JSON spells them, UTF-8 does not hold them."""
    whole = json.loads((folders[name] / "index.json").read_text())
    for key, value in {**HALVES[name], "raw_data": {**whole["shards"][0]["raw_data"], "basename": "\ud800"}}.items():
        folder = shutil.copytree(folders[name], tmp_path / key)
        index = {**whole, "shards": [{**whole["shards"][0], key: value}]}
        (folder / "index.json").write_text(json.dumps(index))
        with pytest.raises(InvalidMetadataError, match="expected"):
            sl.scan(folder).to_arrow()


WRITERS = {
    "mds": {"format": "mds"},
    "csv": {"format": "xsv", "separator": ","},
    "jsonl": {"format": "jsonl"},
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_writers_are_given_is_told_in_our_words(tmp_path: Path, name: str) -> None:
    numbers = iter(range(10_000))

    def written(columns: Any, sample: Any, **options: Any) -> None:
        with sl.create(tmp_path / str(next(numbers)), columns, **{**WRITERS[name], **options}) as writer:
            writer.write(sample)

    plain = [-1, 1.5, "x", b"x", ["x"], {"x": 1}, {1: 2}, float("nan"), object(), None, "\ud800"]
    calls = {
        (option, repr(one)): lambda option=option, one=one: written({"x": "str"}, {"x": "a"}, **{option: one})
        for option in ("compression", "hashes", "size_limit", "nonsense")
        for one in plain
    }
    for encoding in ("str", "int", "ndarray", "pil"):
        calls |= {
            (encoding, repr(one)): lambda encoding=encoding, one=one: written({"x": encoding}, {"x": one})
            for one in (*plain, np.zeros(2))
        }
    calls |= {("columns", repr(one)): lambda one=one: written(one, {"x": "a"}) for one in plain}
    calls |= {("sample", repr(one)): lambda one=one: written({"x": "str"}, one) for one in (*plain, np.zeros(2))}
    assert {key: found for key, call in calls.items() if (found := told(call))} == {}


def test_settings_that_a_writer_does_not_have_are_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'mds' takes no option 'separator'; it takes compression, hashes, size_limit"):
        sl.create(tmp_path / "a", {"x": "str"}, format="mds", separator=",")
    with pytest.raises(ValueError, match=r"hashes: expected a list as \['sha1'\], found 'sha1'"):
        sl.create(tmp_path / "b", {"x": "str"}, format="jsonl", hashes="sha1")
    assert not list(tmp_path.iterdir())
