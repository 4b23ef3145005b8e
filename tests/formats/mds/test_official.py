"""The official package and this one, side by side: same bytes written, each reads the other's, over generated data."""

from __future__ import annotations

import gzip
import io
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlake as sl

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")
for name in ("zstandard", "brotli", "snappy", "xxhash"):
    pytest.importorskip(name, reason=f"needs {name}")

SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
PLAIN = ("bytes", "str", "int", "str_int", "str_float", "str_decimal", "json", "pkl", *SCALARS)
PICTURES = ("pil", "jpeg", "png", "jpeg_array", "list[pil]", "list[jpeg]", "list[png]")
ARRAYS = ("ndarray", "ndarray:", *(f"ndarray:{kind}" for kind in SCALARS), *(f"ndarray:{kind}:2,3" for kind in SCALARS))
ALL = (*PLAIN, *PICTURES, *ARRAYS, "ndarray:float32:7", "ndarray:int64:1,2,3,2")
COMPRESSIONS = (None, "br", "br:5", "bz2", "bz2:1", "gz", "gz:3", "snappy", "zstd", "zstd:1", "zstd:19")
HASHES = ((), ("sha1",), ("md5", "xxh3_64"), ("blake2b", "sha3_256", "xxh128", "xxh32", "xxh64"))
LIMITS: tuple[int | str | None, ...] = (None, 1 << 26, "2kb", 700, 1)

WRITE = """
from streaming.base.format import MDSWriter, CSVWriter, TSVWriter, XSVWriter, JSONWriter
writers = {'mds': MDSWriter, 'csv': CSVWriter, 'tsv': TSVWriter, 'xsv': XSVWriter, 'jsonl': JSONWriter}
for kind, out, columns, options, samples in cases:
    with writers[kind](out=out, columns=columns, **options) as writer:
        for sample in samples:
            writer.write(sample)
"""

READ = """
import json, os
import numpy as np
from streaming.base.compression import decompress
from streaming.base.format import reader_from_json

def plain(value):
    if isinstance(value, list):
        return [plain(one) for one in value]
    if hasattr(value, 'getpixel'):
        return (value.mode, value.size, value.tobytes())
    return value

def all_of(folder):
    found = []
    for shard in json.load(open(folder + '/index.json'))['shards']:
        reader = reader_from_json(folder, '', shard)
        for raw, zipped in reader.file_pairs:
            if zipped is not None and not os.path.exists(folder + '/' + raw.basename):
                data = decompress(shard['compression'], open(folder + '/' + zipped.basename, 'rb').read())
                open(folder + '/' + raw.basename, 'wb').write(data)
        found += [{name: plain(value) for name, value in reader[n].items()} for n in range(shard['samples'])]
    return found

result = [all_of(folder) for folder in folders]
"""


def picture(random: np.random.Generator) -> Any:
    pixels = random.integers(0, 256, (*random.integers(1, 9, 2), 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(str(random.choice(["RGB", "L", "RGB"])))


def jpeg(random: np.random.Generator) -> bytes:
    out = io.BytesIO()
    picture(random).save(out, "JPEG")
    return out.getvalue()


def value(encoding: str, random: np.random.Generator) -> Any:
    size = int(random.integers(0, 60))
    if encoding.startswith("ndarray"):
        _, kind, shape = (*encoding.split(":"), "", "")[:3]
        kind = kind or "float32"  # the dtype of a column, so that it has one type
        ndim = 2
        dims = tuple(map(int, shape.split(","))) if shape else tuple(random.integers(1, 300, ndim) // (1, 60) + (0, 1))
        return (random.standard_normal(dims) * 50).astype(kind)
    if encoding in SCALARS:
        return float(random.standard_normal()) if "float" in encoding else int(random.integers(0, 100))
    made = {
        "bytes": lambda: random.bytes(size),
        "str": lambda: "".join(chr(int(c)) for c in random.integers(32, 0x2FFF, size)),
        "int": lambda: int(random.integers(-(1 << 63), 1 << 63)),
        "str_int": lambda: int(random.integers(-(1 << 63), 1 << 63)),
        "str_float": lambda: float(random.choice([random.standard_normal(), math.inf, 1e300])),
        "str_decimal": lambda: Decimal(int(random.integers(0, 10_000))) / 100,
        "json": lambda: {"z": [1, None, "é"], "a": float(random.random()), "n": np.arange(2).tolist()},
        "pkl": lambda: {"x": size},
        "pil": lambda: picture(random),
        "jpeg": lambda: picture(random),
        "png": lambda: picture(random),
        "jpeg_array": lambda: [jpeg(random) for _ in range(1 + size % 3)],
    }
    if encoding.startswith("list["):
        return [picture(random) for _ in range(size % 4)]
    return made[encoding]()


def some(count: int, columns: dict[str, str], random: np.random.Generator) -> list[dict[str, Any]]:
    return [{name: value(encoding, random) for name, encoding in columns.items()} for _ in range(count)]


def mds_cases(tmp_path: Path) -> list[tuple[str, str, dict[str, str], dict[str, Any], list[dict[str, Any]]]]:
    random = np.random.default_rng(7)
    cases = []
    everything = {f"c{number:02d}": encoding for number, encoding in enumerate(ALL)}
    for number, compression in enumerate(COMPRESSIONS):
        for _ in range(3):
            names = random.choice(list(everything), int(random.integers(1, 9)), replace=False).tolist()
            columns = {name: everything[name] for name in (everything if not len(cases) % 11 else names)}
            options = {
                "compression": compression,
                "hashes": list(HASHES[int(random.integers(len(HASHES)))]),
                "size_limit": LIMITS[(number + len(cases)) % len(LIMITS)],
            }
            samples = some(int(random.integers(0, 12)), columns, random)
            cases.append(("mds", str(tmp_path / f"theirs-{len(cases)}"), columns, options, samples))
    return cases


def line_cases(tmp_path: Path) -> list[tuple[str, str, dict[str, str], dict[str, Any], list[dict[str, Any]]]]:
    random = np.random.default_rng(8)
    columns = {"word": "str", "count": "int", "share": "float"}
    cases = []
    for kind in ("csv", "tsv", "xsv", "jsonl"):
        for number, compression in enumerate((None, "zstd:7", "bz2", "gz")):
            options: dict[str, Any] = {
                "compression": compression,
                "hashes": list(HASHES[number % len(HASHES)]),
                "size_limit": LIMITS[number],
            }
            if kind == "xsv":
                options |= {"separator": "||", "newline": "\r\n" if number % 2 else "\n"}
            if kind == "jsonl" and number % 2:
                options["newline"] = "\r\n"
            samples = [
                {
                    "word": "".join(chr(int(c)) for c in random.integers(0x61, 0x17F, 9)),
                    "count": int(random.integers(-(10**9), 10**9)),
                    "share": float(random.choice([random.standard_normal(), 1e300, 0.1])),
                }
                for _ in range(12)
            ]
            cases.append((kind, str(tmp_path / f"theirs-{kind}-{number}"), columns, options, samples))
    return cases


def ours(case: tuple[str, str, dict[str, str], dict[str, Any], list[dict[str, Any]]]) -> str:
    """Write a case here; gives the folder."""
    kind, theirs, columns, options, samples = case
    out = theirs.replace("theirs", "ours")
    more = {"separator": {"csv": ",", "tsv": "\t"}[kind]} if kind in {"csv", "tsv"} else {}
    format_ = "xsv" if kind in {"csv", "tsv", "xsv"} else kind
    with sl.create(out, columns, format=format_, **options, **more) as writer:
        for sample in samples:
            writer.write(sample)
    return out


def contents(folder: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*.*"))}


def without_time(files: dict[str, bytes]) -> dict[str, Any]:
    """gzip writes the time into its header: what remains to be compared is inside, and the index without its hashes."""
    found: dict[str, Any] = {}
    for name, data in files.items():
        if name.endswith(".gz"):
            found[name] = gzip.decompress(data)
        elif name == "index.json":
            index = json.loads(data)
            for shard in index["shards"]:
                for file in ("zip_data", "zip_meta"):
                    if shard.get(file):
                        shard[file]["hashes"] = sorted(shard[file]["hashes"])
            found[name] = index
        else:
            found[name] = data
    return found


@pytest.mark.parametrize("cases_of", [mds_cases, line_cases])
def test_files_equal_the_official_writers_byte_for_byte(official, tmp_path, cases_of):
    cases = cases_of(tmp_path)
    official(WRITE, cases=cases)
    shards = 0
    for case in cases:
        mine, theirs = contents(ours(case)), contents(case[1])
        zipped = case[3]["compression"] or ""
        if zipped.startswith("gz"):
            mine, theirs = without_time(mine), without_time(theirs)
        assert list(mine) == list(theirs), case[:4]
        for name in theirs:
            assert mine[name] == theirs[name], (name, case[:4])
        shards += len(theirs) - 1
    assert shards > len(cases)


@pytest.mark.parametrize("cases_of", [mds_cases, line_cases])
def test_each_reads_what_the_other_wrote(official, tmp_path, cases_of):
    cases = [case for case in cases_of(tmp_path) if case[4]]
    official(WRITE, cases=cases)
    folders = [ours(case) for case in cases]
    by_them = official(READ, folders=folders)  # leaves raw files beside the compressed ones, as its cache does
    for case, folder, theirs in zip(cases, folders, by_them, strict=True):
        columns, samples = case[2], case[4]
        pickles = [name for name, encoding in columns.items() if encoding == "pkl"]
        options = {"allow_pickle": pickles} if pickles else {}
        mine = _scan(case, options)
        assert len(mine) == len(samples) == len(theirs), folder
        for number, (sample, read_there) in enumerate(zip(samples, theirs, strict=True)):
            read_here = mine[number]
            assert list(read_here) == sorted(columns) or set(read_here) == set(columns)
            for name, encoding in columns.items():
                where = (folder, number, name, encoding)
                _same(read_here[name], sample[name], encoding, where)
                _same_there(read_there[name], sample[name], encoding, where)


def _scan(case: Any, options: dict[str, Any]) -> Any:
    from seqlake import plugins

    kind = "xsv" if case[0] in {"csv", "tsv", "xsv"} else case[0]
    return plugins.load("formats", kind).scan(case[1], **options)


def _pixels(data: Any) -> tuple[str, tuple[int, int], bytes]:
    image = Image.open(io.BytesIO(data)) if isinstance(data, (bytes, memoryview)) else data
    return image.mode, image.size, image.tobytes()


def _same(found: Any, given: Any, encoding: str, where: Any) -> None:
    """What is read here is what was given."""
    if encoding in {"pil", "png"}:
        assert _pixels(bytes(found)) == _pixels(given), where
    elif encoding == "jpeg":
        assert _pixels(bytes(found))[:2] == _pixels(given)[:2], where
    elif encoding == "jpeg_array":
        assert [bytes(one) for one in found] == given, where
    elif encoding.startswith("list["):
        lossless = encoding != "list[jpeg]"
        assert [_pixels(bytes(a))[: 2 + lossless] for a in found] == [_pixels(b)[: 2 + lossless] for b in given], where
    else:
        _same_there(found, given, encoding, where)


def _same_there(found: Any, given: Any, encoding: str, where: Any) -> None:
    if encoding in PICTURES:
        if encoding == "jpeg_array":
            assert found == [_pixels(one) for one in given], where
        elif encoding in {"pil", "png"}:
            assert found == _pixels(given), where
        return
    if isinstance(given, np.ndarray):
        assert found.dtype == given.dtype, where
        np.testing.assert_array_equal(found, given, err_msg=str(where))
        return
    if encoding in {"float16", "float32"}:
        given = np.dtype(encoding).type(given)
    assert found == given, where
