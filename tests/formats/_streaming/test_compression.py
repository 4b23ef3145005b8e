"""Compressions and hashes: what is read, what is refused, and that a small file never becomes a huge one."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
from pathlib import Path

import pytest

import seqlake as sl
from seqlake.abilities import Checked, ability
from seqlake.errors import CorruptFileError
from seqlake.formats._streaming.compression import Compression
from seqlake.formats._streaming.index import byte_size

from ..by_hand import write  # noqa: TID252 - one tool for several formats

zstandard = pytest.importorskip("zstandard")
brotli = pytest.importorskip("brotli")
snappy = pytest.importorskip("snappy")

PACKERS = {
    "zstd": zstandard.ZstdCompressor().compress,
    "br": brotli.compress,
    "snappy": snappy.compress,
    "bz2": bz2.compress,
    "gz": gzip.compress,
}


def packed(folder: Path, code: str, data: bytes | None = None, *, hashes: tuple[str, ...] = ()) -> Path:
    """The folder with its shard compressed, or replaced by these bytes."""
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        name = shard["raw_data"]["basename"]
        raw = (folder / name).read_bytes()
        kept = PACKERS[code](raw) if data is None else data
        (folder / name).unlink()
        (folder / f"{name}.{code}").write_bytes(kept)
        digests = {one: hashlib.new(one, kept).hexdigest() for one in hashes}
        shard |= {
            "compression": code,
            "zip_data": {"basename": f"{name}.{code}", "bytes": len(kept), "hashes": digests},
        }
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cells = [{"x": bytes([i]) * i} for i in range(50)]
    return write(tmp_path / "set", {"x": "bytes"}, [cells[:20], cells[20:]])


@pytest.mark.parametrize("code", PACKERS)
def test_compressed_shards_are_read(folder: Path, code: str) -> None:
    table = sl.scan(packed(folder, code, hashes=("sha256",))).to_arrow()
    assert table["x"].to_pylist() == [bytes([i]) * i for i in range(50)]


@pytest.mark.parametrize("code", PACKERS)
def test_damaged_files_are_refused(folder: Path, code: str) -> None:
    packed(folder, code)
    path = folder / f"shard.00001.mds.{code}"
    whole = path.read_bytes()
    index = (folder / "index.json").read_text()
    for damaged in (whole[:-3], whole[: len(whole) // 2], b"", b"\0" * len(whole)):
        path.write_bytes(damaged)
        (folder / "index.json").write_text(index.replace(f'"bytes": {len(whole)},', f'"bytes": {len(damaged)},'))
        with pytest.raises(CorruptFileError):
            sl.scan(folder).to_arrow()


@pytest.mark.parametrize("code", PACKERS)
def test_a_hash_is_compared_before_anything_is_unpacked(folder: Path, code: str) -> None:
    packed(folder, code, hashes=("md5", "sha1"))
    path = folder / f"shard.00000.mds.{code}"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptFileError, match="sha1"):
        sl.scan(folder).to_arrow()


@pytest.mark.parametrize("code", PACKERS)
@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_another_size_than_promised_is_refused(code: str, size: int) -> None:
    kind = Compression.of(code)
    data = kind.compress(b"\0" * size)
    assert bytes(kind.decompress(data, size)) == b"\0" * size
    for wrong in (0, size - 1, size + 1):
        with pytest.raises(CorruptFileError, match="should decompress|not"):
            kind.decompress(data, wrong)


def test_frames_that_follow_each_other_and_frames_without_a_size(folder: Path) -> None:
    raw = (folder / "shard.00000.mds").read_bytes()
    (folder / "shard.00001.mds").write_bytes(raw)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][1] = index["shards"][0]
    index["shards"] = index["shards"][:1]
    (folder / "index.json").write_text(json.dumps(index))
    make = zstandard.ZstdCompressor(write_content_size=False)
    packed(folder, "zstd", make.compress(raw[:100]) + make.compress(raw[100:]))
    rows = sl.scan(folder)
    assert len(rows.to_arrow()) == 20
    assert "streaming-zstd-size" in [finding.code for finding in ability(rows, Checked).check("rows")]


def test_what_a_cache_of_the_official_reader_keeps_is_read(folder: Path) -> None:
    raw = {path.name: path.read_bytes() for path in folder.glob("*.mds")}
    packed(folder, "zstd")
    for name, data in raw.items():
        (folder / f"{name}.zstd").unlink()
        (folder / name).write_bytes(data)
    rows = sl.scan(folder)
    assert len(rows.to_arrow()) == 50
    assert [finding for finding in ability(rows, Checked).check("rows") if finding.severity == "error"] == []


@pytest.mark.parametrize(
    "name", ["zip", "zstd:0", "zstd:23", "zstd:07", "zstd:", "snappy:1", "br:12", "bz2:0", "gz:-1"]
)
def test_names_that_do_not_exist(name: str) -> None:
    with pytest.raises(ValueError, match="compression|level"):
        Compression.of(name)


def test_sizes_are_numbers_or_texts() -> None:
    assert [byte_size(v) for v in ("64mb", "1kb", "1.5 KB", "17", "3b", 0, None, 5)] == [
        *(1 << 26, 1024, 1536, 17, 3, None, None, 5),
    ]
    for wrong in ("many", "5 apples", -1, "-1"):
        with pytest.raises(ValueError, match="size"):
            byte_size(wrong)
