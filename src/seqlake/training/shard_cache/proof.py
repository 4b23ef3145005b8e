"""Whether a local shard is what was written: its checksums once, and after that what the system says of the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlake.errors import CorruptFileError
from seqlake.files.blobs import LocalBlob
from seqlake.files.checksums import crc32
from seqlake.shards.parquet.checking import check_chunk
from seqlake.shards.parquet.footer import read_footer

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from seqlake.shards.parquet.footer import Footer

_PIECE = 4 << 20
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def seal(path: Path, record: Mapping[str, Any], /) -> dict[str, Any]:
    """A record with what proves the file's bytes later, and the state that they are in now.

    Args:
        path: The file.
        record: May say `chunks`, pairs of (row group, Parquet column) whose pages carry checksums and were checked;
            else a checksum of the whole file is taken. `ranges`, pairs of (first byte, end): the rest is holes.
    """
    status = path.stat()
    record = {"ranges": [[0, status.st_size]], **record, **_state(status)}
    return record if record.get("chunks") else {**record, "sum": _sum(path, record["ranges"])}


def proved(path: Path, record: Mapping[str, Any], /) -> Mapping[str, Any] | None:
    """The record, if the file is what it says.

    Where size, time, inode and boot are those of the last proof, nothing is read: since then only a write could have
    changed it, and that changes the time. After a restart, or where the cache was copied, all checksums are compared
    again.

    Returns:
        The record itself; or one with the new state; None for a file that is damaged or gone.
    """
    try:
        status = path.stat()
        state = _state(status)
        if record["size"] != status.st_size:
            return None
        if state["boot"] and all(record.get(name) == value for name, value in state.items()):
            return record
        return {**record, **state} if _is_whole(path, record) else None
    except (OSError, KeyError, TypeError, ValueError, LookupError):
        return None


def check_pages(footer: Footer, chunks: Sequence[Sequence[int]], /) -> None:
    """Compare the pages of some chunks with the checksums that were written with them.

    Args:
        footer: Of a local file.
        chunks: Pairs of (row group, Parquet column).

    Raises:
        CorruptFileError: One differs.
    """
    index, view = footer.index(), footer.blob.view()
    for group, leaf in chunks:
        chunk = footer.chunks[group][leaf]
        data = None if view is None else view[chunk.start : chunk.stop]
        for finding in check_chunk(footer, index, chunk, data=data):
            raise CorruptFileError(finding.message, path=footer.blob.location, hint="`seqlake validate` says more.")


def _is_whole(path: Path, record: Mapping[str, Any]) -> bool:
    if not record.get("chunks"):
        return bool(_sum(path, record["ranges"]) == record["sum"])
    blob = LocalBlob(path)
    try:
        check_pages(read_footer(blob), record["chunks"])
    finally:
        blob.let_go()
    return True


def _state(status: os.stat_result) -> dict[str, Any]:
    return {"size": status.st_size, "changed": status.st_mtime_ns, "inode": status.st_ino, "boot": _boot()}


def _boot() -> str:
    """Which start of this machine it is: a power loss may leave zeros in a file that looks whole."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _sum(path: Path, ranges: Sequence[Sequence[int]]) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as file:
        for start, stop in ranges:
            file.seek(start)
            left = stop - start
            while left > 0:
                piece = file.read(min(left, _PIECE))
                if not piece:
                    raise OSError(5, "the file ends early", str(path))
                checksum = crc32(piece, checksum)
                left -= len(piece)
    return checksum
