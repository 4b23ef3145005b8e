"""Whatever is written comes back; whatever is damaged is an error or the right answer."""

from __future__ import annotations

import json
import math
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.errors import SeqlakeError
from seqlake.formats import jsonl, mds, xsv

from ...counting import Counts, many, seeded  # noqa: TID252 - tests are no package that could be named

pytest.importorskip("zstandard")

EXAMPLES = 10_000
"""Of each test that `scripts/soak` runs."""

DTYPES = ["uint8", "int16", "int64", "float16", "float32", "float64"]


def floats(width: int) -> st.SearchStrategy:
    return st.floats(width=width, allow_nan=False)


@st.composite
def arrays(draw, dtype: str, shape: tuple[int, ...] | None, ndim: int = 1):
    dims = shape or tuple(draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    size = math.prod(dims) * np.dtype(dtype).itemsize
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(dims)


@st.composite
def columns(draw) -> tuple[str, st.SearchStrategy]:
    kind = draw(
        st.sampled_from(["scalar", "int", "text", "bytes", "json", "number", "free", "named", "fixed", "images"])
    )
    dtype = draw(st.sampled_from(DTYPES))
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    if kind == "scalar":
        return dtype, st.floats(width=16, allow_nan=False) if "float" in dtype else st.integers(0, 100)
    if kind == "free":
        return "ndarray", arrays(dtype, None, ndim)
    if kind == "named":
        return f"ndarray:{dtype}", arrays(dtype, None, ndim)
    if kind == "fixed":
        return f"ndarray:{dtype}:{','.join(map(str, shape))}", arrays(dtype, shape)
    if kind == "json":
        return kind, st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4)
    if kind == "number":
        return draw(
            st.sampled_from(
                [
                    ("str_int", st.integers(-(1 << 63), (1 << 63) - 1)),
                    ("str_float", st.floats(allow_nan=False)),
                    ("str_decimal", st.decimals(allow_nan=False)),
                ]
            )
        )
    simple = {"int": st.integers(-(1 << 63), (1 << 63) - 1), "text": st.text(), "bytes": st.binary()}
    if kind == "images":
        return "jpeg_array", st.lists(st.binary(), min_size=1, max_size=3)
    return {"text": "str"}.get(kind, kind), simple[kind]


@st.composite
def sets(draw) -> tuple[dict[str, str], list[dict[str, Any]]]:
    kinds = draw(st.dictionaries(st.text("abcß", min_size=1, max_size=3), columns(), min_size=1, max_size=4))
    made = st.fixed_dictionaries({name: values for name, (_, values) in kinds.items()})
    return {name: encoding for name, (encoding, _) in kinds.items()}, draw(st.lists(made, min_size=1, max_size=8))


def plain(value: Any) -> Any:
    """As Arrow's Python values show it; arrays by their bits."""
    if isinstance(value, np.ndarray):
        return value.tobytes(), value.shape
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Decimal) else value


def shown(value: Any, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return np.array(value, like.dtype).reshape(like.shape).tobytes(), like.shape
    return value


def check_round_trip(given_set, compression: str | None, limit: int | None) -> None:
    encodings, samples = given_set
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out"
        with mds.writer(out, encodings, compression=compression, size_limit=limit, hashes=["md5"]) as writer:
            writer.write_all(samples)
        source = mds.scan(out)
        found = [source[i] for i in range(len(source))]
        for sample, again in zip(samples, found, strict=True):
            for name in encodings:
                if encodings[name].startswith(("float", "uint", "int")) and encodings[name] != "int":
                    assert np.dtype(encodings[name]).type(sample[name]) == again[name]
                else:
                    assert plain(again[name]) == plain(sample[name])
        table = sl.scan(source).to_arrow()
        rng = np.random.default_rng(len(samples))
        rows = rng.integers(0, len(samples), 5)
        for name, encoding in encodings.items():
            cells = table[name].to_pylist()
            for sample, cell in zip(samples, cells, strict=True):
                wanted = sample[name]
                if isinstance(wanted, np.ndarray) and wanted.dtype.kind == "f" and np.isnan(wanted).any():
                    np.testing.assert_array_equal(np.array(cell, wanted.dtype).reshape(wanted.shape), wanted)
                elif encoding == "json":
                    assert json.loads(cell) == wanted
                elif isinstance(wanted, np.ndarray):
                    assert shown(cell, wanted) == plain(wanted)
            shuffled = [cells[row] for row in rows]
            shards = source.shards()
            if len(shards) == 1:
                batch = next(iter(shards[0].open().batches([name], rows=rows)))
                np.testing.assert_equal(batch.column(0).to_pylist(), shuffled)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(sets(), st.sampled_from([None, "zstd", "bz2:1"]), st.sampled_from([None, 200, 1000]))
def test_samples_come_back(given_set, compression, limit) -> None:
    check_round_trip(given_set, compression, limit)


@pytest.mark.soak
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(sets(), st.sampled_from([None, "zstd", "bz2:1", "br:1", "snappy", "gz"]), st.sampled_from([None, 200, 1000]))
def test_samples_come_back_thousands_of_times(given_set, compression, limit) -> None:
    check_round_trip(given_set, compression, limit)


LINES: dict[str, tuple[Any, dict[str, str], str]] = {
    "csv": (xsv, {}, ","),
    "tsv": (xsv, {"separator": "\t"}, "\t"),
    "xsv": (xsv, {"separator": "::", "newline": "\r\n"}, ":\r"),
    "jsonl": (jsonl, {}, ""),
}
"""Kind -> its plug, how it is written, and what its texts may not hold."""


def check_lines(draw, kind: str, compression: str | None, limit: int | None) -> None:
    plug, options, marks = LINES[kind]
    texts = st.text(st.characters(exclude_characters=f"\n{marks}", exclude_categories=["Cs"]))
    whole = st.integers(-(1 << 63), (1 << 63) - 1)
    row = st.fixed_dictionaries({"t": texts, "i": whole, "x": st.floats(allow_nan=False)})
    rows = draw(st.lists(row, min_size=1, max_size=8))
    with tempfile.TemporaryDirectory() as folder:
        out, columns = f"{folder}/out", {"t": "str", "i": "int", "x": "float"}
        with plug.writer(out, columns, compression=compression, size_limit=limit, **options) as writer:
            writer.write_all(rows)
        assert sl.scan(out).select("t", "i", "x").to_arrow().to_pylist() == rows
        assert [plug.scan(out)[i] for i in range(len(rows))] == rows


@pytest.mark.parametrize("kind", list(LINES))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from([None, "zstd"]), st.sampled_from([None, 50]))
def test_lines_come_back(kind: str, data, compression, limit) -> None:
    check_lines(data.draw, kind, compression, limit)


@pytest.mark.soak
@pytest.mark.parametrize("kind", list(LINES))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from([None, "zstd", "bz2:1", "br:1", "snappy", "gz"]), st.sampled_from([None, 50]))
def test_lines_come_back_thousands_of_times(kind: str, data, compression, limit) -> None:
    check_lines(data.draw, kind, compression, limit)


# ---- damage


def made(folder: Path, kind: str, compression: str | None, hashes: list[str]) -> Path:
    options = {"compression": compression, "hashes": hashes, "size_limit": 400}
    if kind == "mds":
        encodings = {"a": "int", "s": "str", "n": "ndarray", "f": "ndarray:int16:2,2", "j": "json", "p": "jpeg_array"}
        with mds.writer(str(folder), encodings, **options) as writer:
            for i in range(12):
                cell = {"a": i, "s": "ä" * i, "n": np.arange(i + 1, dtype="i2"), "f": np.full((2, 2), i, "i2")}
                writer.write({**cell, "j": {"k": i}, "p": [b"x" * i, b""]})
    else:
        plug, given_options, _ = LINES[kind]
        columns = {"t": "str", "i": "int", "x": "float"}
        with plug.writer(str(folder), columns, **options, **given_options) as writer:
            writer.write_all({"t": "ä" * i, "i": i, "x": i / 3} for i in range(30))
    return folder


def everything(folder: Path, kind: str) -> list[Any]:
    """All that any way of reading gives."""
    plug = mds if kind == "mds" else LINES[kind][0]
    source = plug.scan(str(folder))
    parts: list[Any] = [sl.scan(source).to_arrow().to_pylist()]
    parts.append([{k: plain(v) for k, v in source[i].items()} for i in range(len(source))])
    for shard in source.shards():
        reader = shard.open()
        for name in source.schema.names:
            flat = reader.flat(name)
            if flat is not None:
                parts.append([bytes(one) for one in flat.blob.ranges(flat.start, flat.start + flat.stride)])
    names = [name for name in source.schema.names if name != "p"]  # whose bytes are no pictures
    if len(source) and names:
        batch = sl.Loader(source, window=names, batch_size=4).dataset().batch(range(len(source) - 1, -1, -1))
        parts.append({name: [plain(value) for value in values] for name, values in batch.items()})
    return parts


def damaged(data: bytes, draw) -> bytes:
    how = draw(st.sampled_from(["flip", "cut", "grow", "zero", "swap"]))
    place = draw(st.integers(0, max(0, len(data) - 1)))
    length = draw(st.integers(1, 9))
    if how == "cut":
        return data[:place]
    if how == "grow":
        return data[:place] + draw(st.binary(min_size=1, max_size=5)) + data[place:]
    if how == "zero":
        return data[:place] + bytes(min(length, len(data) - place)) + data[place + length :]
    if how == "swap":
        return data[:place] + data[place : place + length][::-1] + data[place + length :]
    return data[:place] + bytes([data[place] ^ draw(st.integers(1, 255))]) + data[place + 1 :]


def findings(place: str) -> set[tuple[str, str]]:
    """What `seqlake validate --depth rows` says of a folder."""
    return {(one.code, one.message.replace(place, "")) for one in sl.validate(sl.scan(place), depth="rows").findings}


def found_by_validate(place: str, clean: set[tuple[str, str]]) -> bool:
    """Whether `validate` finds anything that it does not find in the unchanged folder."""
    try:
        return bool(findings(place) - clean)
    except SeqlakeError:
        return True


def check_damage(draw, kind: str, compression: str | None, hashes: list[str], counts: Counts) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = made(Path(name) / "set", kind, compression, hashes)
        right, clean = everything(folder, kind), findings(str(folder))
        index = (folder / "index.json").read_bytes()
        files = sorted(path for path in folder.iterdir() if path.is_file())
        path = draw(st.sampled_from(files))
        path.write_bytes(damaged(path.read_bytes(), draw))
        same_size = path.name != "index.json" and path.stat().st_size == _size(index, path.name)
        before = counts.bare
        found: list[Any] = []
        counts.of(
            lambda: found.append(everything(folder, kind)),
            lambda _: found[0] == right or found_by_validate(str(folder), clean),
            name=f"{kind}, {compression}, {hashes}, {path.name}",
        )
        assert counts.bare == before, counts.examples
        if not found or path.name == "index.json":
            return
        if hashes:
            assert found[0] == right
        else:
            assert same_size


def _size(index: bytes, name: str) -> int:
    for shard in json.loads(index)["shards"]:
        for key in ("raw_data", "zip_data", "raw_meta", "zip_meta"):
            if shard.get(key) and shard[key]["basename"] == name:
                return shard[key]["bytes"]
    raise AssertionError(name)


READERS = {"mds": "MDS", "csv": "CSV", "tsv": "TSV", "xsv": "XSV", "jsonl": "JSON lines"}
"""Kind -> what the table of the soak calls it."""

CODECS = [None, "zstd", "gz", "bz2", "br:1", "snappy"]


def look(
    kind: str, hashes: list[list[str]], examples: int, codecs: list[str | None], first: int | None = None
) -> Counts:
    counts = Counts(reader=f"{READERS[kind]}, {'hashed' if hashes[0] else 'no hashes'}")

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data(), st.sampled_from(codecs), st.sampled_from(hashes))
    def damage(data, compression, some) -> None:
        check_damage(data.draw, kind, compression, some, counts)

    if first is not None:
        hypothesis.seed(first)(damage)
    try:
        damage()
    finally:
        if counts.wrong:
            counts.cause = "index.json has no checksum" + (", and here no hashes" if not hashes[0] else "")
        counts.keep()
    return counts


HASHES = [[[]], [["sha1"], ["md5", "xxh64"]]]


@pytest.mark.sampled
@pytest.mark.mutations
@pytest.mark.parametrize("hashes", HASHES, ids=["none", "hashed"])
@pytest.mark.parametrize("kind", list(READERS))
def test_damage_is_an_error_or_the_right_answer(kind: str, hashes) -> None:
    look(kind, hashes, 12, [None, "zstd", "gz"])


@pytest.mark.soak
@pytest.mark.mutations
@pytest.mark.parametrize("hashes", HASHES, ids=["none", "hashed"])
@pytest.mark.parametrize("kind", list(READERS))
def test_damage_thousands_of_times(kind: str, hashes) -> None:
    counts = look(kind, hashes, many(EXAMPLES // 10), CODECS, seeded(0))
    assert counts.right
    assert counts.refused
