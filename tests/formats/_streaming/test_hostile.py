"""Folders made to harm or to mislead: sizes that lie, an index of other shards, sound samples that do not fit."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError, DecodeError, InvalidMetadataError
from seqlake.formats import jsonl, mds, xsv

from ..bounded import run  # noqa: TID252 - one tool for several formats
from ..by_hand import lines, write  # noqa: TID252 - one tool for several formats

READ = """
from seqlake.formats import mds
warm, *places = sys.argv[1:]
for batch in sl.scan(warm).batches(): pass
mds.scan(warm)[0]
bound(400 << 20)
result = {}
for place in places:
    def rows():
        for batch in sl.scan(place).batches(): pass
    def findings():
        return [str(found) for found in mds.scan(place).check("rows")]
    result[place] = [told(rows), told(lambda: mds.scan(place)[0]), told(findings)]
"""


def changed(folder: Path, **keys: Any) -> Path:
    """Other keys in the first entry of an index."""
    path = folder / "index.json"
    index = json.loads(path.read_text())
    index["shards"][0].update(keys)
    path.write_text(json.dumps(index))
    return folder


def zstd_zeros(count: int) -> bytes:
    """A frame of blocks of one byte repeated (RFC 8878, 3.1.1.2): four bytes for each 128 KiB."""
    block, last = ((end | 1 << 1 | 1 << 17 << 3).to_bytes(3, "little") + b"\0" for end in (0, 1))
    return b"\x28\xb5\x2f\xfd\x00\x38" + block * ((count >> 17) - 1) + last


def gz_zeros(count: int) -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    return gzip.compress(b"")[:10] + block * (count >> 24) + b"\3\0" + struct.pack("<II", 0, count)


def test_a_few_bytes_that_claim_to_be_gigabytes_take_no_memory(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    good = write(tmp_path / "good", {"x": "int"}, [[{"x": bytes(8)}]])
    size, places = 3_600 << 20, []
    bombs = {"zstd": zstd_zeros(size), "gz": gz_zeros(size), "snappy": b"\x80\x80\x80\x84\x0e" + bytes(99)}
    for code, data in bombs.items():
        for claimed in (size, 1 << 20):
            folder = write(tmp_path / f"{code}-{claimed}", {"x": "int"}, [[{"x": bytes(8)}]])
            (folder / "shard.00000.mds").unlink()
            (folder / f"shard.00000.mds.{code}").write_bytes(data)
            raw = {"basename": "shard.00000.mds", "bytes": claimed, "hashes": {}}
            zipped = {"basename": f"shard.00000.mds.{code}", "bytes": len(data), "hashes": {}}
            places.append(changed(folder, compression=code, raw_data=raw, zip_data=zipped))
    shape = bytes([8, 3 << 2 | 2]) + struct.pack("<III", (1 << 32) - 1, (1 << 32) - 1, 0)
    places.append(write(tmp_path / "empty", {"x": "ndarray"}, [[{"x": shape}]]))
    results = run(READ, str(good), *map(str, places), timeout=120)
    assert results is not None, "the process did not come to its end"
    for place in places:
        assert all(ours for _, _, ours in results[str(place)]), results[str(place)]
        assert results[str(place)][0][0] in {"InvalidMetadataError", "CorruptFileError"}, results[str(place)]


def test_the_limit_can_be_raised(tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    with mds.writer(folder, {"x": "bytes"}, compression="gz", size_limit=None) as writer:
        writer.write({"x": bytes(2_000_000)})
    assert sl.scan(folder).to_arrow()["x"].to_pylist() == [bytes(2_000_000)]
    for read in (lambda **o: sl.scan(folder, **o).to_arrow(), lambda **o: mds.scan(folder, **o)[0]):
        with pytest.raises(InvalidMetadataError, match=r"would make 2000\d+ bytes of \d+.*shard_bytes"):
            read(shard_bytes=1_000_000)
        assert read(shard_bytes=3_000_000) is not None


# ---- an index and a shard that disagree

WHOLE = {"a": "int", "b": "int"}
KINDS = {
    "mds": (mds, lambda home: write(home, WHOLE, [[{name: struct.pack("<q", n) for name, n in (("a", 1), ("b", 2))}]])),
    "csv": (xsv, lambda home: lines(home, "csv", WHOLE, [[b"1,2\n"]], header=b"a,b\n")),
    "tsv": (xsv, lambda home: lines(home, "tsv", WHOLE, [[b"1\t2\n"]], header=b"a\tb\n")),
    "json": (jsonl, lambda home: lines(home, "json", WHOLE, [[b'{"a": 1, "b": 2}\n']])),
}


def swapped(kind: str, what: str) -> dict[str, Any]:
    """What an index says that means something else."""
    if kind == "json":
        return {"columns": {"b": "int", "c": "int"} if what == "names" else {"a": "float", "b": "int"}}
    if what == "names":
        return {"column_names": ["b", "a"]}
    more = {"column_sizes": [8, 8]} if kind == "mds" else {}
    return {"column_encodings": ["float64" if kind == "mds" else "float", "int"], **more}


@pytest.mark.parametrize("what", ["names", "encodings"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_that_names_other_columns_than_the_shard_is_not_believed(tmp_path: Path, kind: str, what: str) -> None:
    plug, make = KINDS[kind]
    assert sl.scan(make(tmp_path / "good")).to_arrow().to_pylist() == [{"a": 1, "b": 2}]
    folder = str(changed(make(tmp_path / "set"), **swapped(kind, what)))
    ways = (
        lambda: sl.scan(folder).to_arrow(),
        lambda: plug.scan(folder)[0],
        lambda: list(plug.scan(folder)),
        lambda: plug.scan(folder).shards()[0].open().cell("b"),
        lambda: sl.Loader(plug.scan(folder), window=["b"], batch_size=1).dataset().batch([0]),
    )
    for read in ways:
        with pytest.raises(CorruptFileError, match="its own header says|its first line is"):
            read()
    findings = [(one.code, one.severity) for one in plug.scan(folder).check("rows")]
    assert ("streaming-head", "error") in findings
    assert plug.scan(folder, verify=False)[0]


def test_a_header_that_rotted_is_noticed_and_one_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", {"a": "int"}, [[{"a": struct.pack("<q", 7)}]])
    path = folder / "shard.00000.mds"
    data = path.read_bytes()
    for place in (12, data.index(b'"column_names": ["a"]') + 18):
        path.write_bytes(data[:place] + bytes([data[place] ^ 2]) + data[place + 1 :])
        with pytest.raises(CorruptFileError, match="its own header"):
            sl.scan(str(folder)).to_arrow()
        assert mds.scan(str(folder), verify=False)[0] == {"a": 7}
    bare = struct.pack("<IIIq", 1, 12, 20, 7)
    path.write_bytes(bare)
    changed(folder, raw_data={"basename": path.name, "bytes": len(bare), "hashes": {}})
    assert sl.scan(str(folder)).to_arrow()["a"].to_pylist() == [7]


# ---- sound samples that do not fit

LARGE = [2**63, -(2**63) - 1, 10**30]
UNHELD = {
    "str_int": lambda home: write(home, {"x": "str_int"}, [[{"x": str(n).encode()} for n in (5, *LARGE)]]),
    "csv": lambda home: lines(home, "csv", {"x": "int"}, [[f"{n}\n".encode() for n in (5, *LARGE)]], header=b"x\n"),
    "json": lambda home: lines(home, "json", {"x": "int"}, [[f'{{"x": {n}}}\n'.encode() for n in (5, *LARGE)]]),
}


@pytest.mark.parametrize("kind", UNHELD)
def test_integers_beyond_64_bits_are_sound(tmp_path: Path, kind: str) -> None:
    folder = str(UNHELD[kind](tmp_path / "set"))
    plug = {"str_int": mds, "csv": xsv, "json": jsonl}[kind]
    assert [one["x"] for one in plug.scan(folder)] == [5, *LARGE]
    window = sl.Loader(plug.scan(folder), window=["x"], batch_size=2).dataset()
    for read in (sl.scan(folder).to_arrow, lambda: window.batch([0, 3])):
        with pytest.raises(DecodeError, match=r"sample \d, column 'x': -?\d+ does not fit into 64 bits") as found:
            read()
        assert not isinstance(found.value, CorruptFileError)
    texts = sl.scan(folder, encodings={"x": "str"}).to_arrow()["x"].to_pylist()
    assert texts == [str(n) for n in (5, *LARGE)]


def test_a_text_that_is_no_integer_is_damage(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", {"x": "str_int"}, [[{"x": b"99999999999999999999"}, {"x": b"seven"}]])
    [shard] = mds.scan(str(folder)).shards()
    for row, kind, said in ((0, DecodeError, "9999 does not fit"), (1, CorruptFileError, "'seven' is no integer")):
        with pytest.raises(kind, match=said):
            list(shard.open().batches(["x"], rows=np.array([row])))


@pytest.mark.parametrize("value", ['"1"', "1.5", "[1]", "{}"])
def test_values_of_json_lines_of_another_kind_are_sound(tmp_path: Path, value: str) -> None:
    folder = lines(tmp_path / "set", "json", {"x": "int"}, [[f'{{"x": {value}}}\n'.encode()]])
    assert jsonl.scan(str(folder))[0] == {"x": json.loads(value)}
    with pytest.raises(DecodeError, match="sample 0, column 'x': expected int, found") as found:
        sl.scan(folder).to_arrow()
    assert not isinstance(found.value, CorruptFileError)


def test_the_official_reader_reads_what_is_sound(tmp_path: Path, official: Any) -> None:
    folders = [str(UNHELD[kind](tmp_path / kind)) for kind in UNHELD]
    cells = [bytes([8, 1 << 2, 1, 5]), bytes([9, 1 << 2, 1, 5]), bytes([8, 2 << 2, 1, 1, 5])]
    folders.append(str(write(tmp_path / "arrays", {"x": "ndarray"}, [[{"x": cell} for cell in cells]])))
    code = """
import json
from streaming.base.format import reader_from_json
result = []
for folder in folders:
    [shard] = json.load(open(folder + '/index.json'))['shards']
    reader = reader_from_json(folder, '', shard)
    result.append([reader[n]['x'] for n in range(shard['samples'])])
"""
    found = official(code, folders=folders)
    for theirs, kind in zip(found, UNHELD, strict=False):
        assert theirs == [5, *LARGE], kind
    ours = [one["x"] for one in mds.scan(folders[-1])]
    assert [(a.dtype, a.tolist()) for a in ours] == [(a.dtype, a.tolist()) for a in found[-1]]
