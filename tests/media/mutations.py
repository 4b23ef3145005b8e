"""Reads changed media files in a process of its own, with little memory: what became of each is a line of its output.

As a script: `python mutations.py FIRST COUNT DONE FOLDER...`, where so many were read before. A folder holds `base`, an
unchanged file, and the datasets `stranger` (its cell names a file beside it) and `copied` (its file was copied in, with
its packet index and its hash).
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOM = 2 << 30  # bytes that a process may take beyond what it has after its imports
SECONDS = 20  # for one changed file
_TELLING = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
_TELLING += [0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x8000000000000000, 100_000_000, 1 << 40]
_DIGITS = ["0", "-1", "99999999", "4294967297", "1e300", "nan", "9" * 40, ""]


def changed(base: bytes, seed: int) -> bytes:
    """One of many ways to spoil a file: flipped bits, a cut, fields with telling values, parts moved or repeated."""
    draw = random.Random(seed)
    data = bytearray(base)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        place = _place(draw, len(data))
        match draw.randrange(8):
            case 0:
                data[place] ^= 1 << draw.randrange(8)
            case 1:
                data[place] = draw.randrange(256)
            case 2:
                del data[place:]
            case 3:
                width, order = draw.choice([2, 4, 4, 8]), draw.choice("<>")
                value = draw.choice(_TELLING) & ((1 << 8 * width) - 1)
                data[place : place + width] = struct.pack(order + {2: "H", 4: "I", 8: "Q"}[width], value)
            case 4:
                stop = place + draw.choice([1, 4, 16, 200])
                data[place:stop] = bytes(min(stop, len(data)) - place)
            case 5:
                del data[place : place + draw.choice([1, 4, 64])]
            case 6:
                data[place:place] = data[place : place + draw.choice([4, 64, 500])]
            case _:
                _number(draw, data)
        if not data:
            return b"\0"
    return bytes(data)


def _place(draw: random.Random, size: int) -> int:
    """Heads are where the sizes stand, and the tail of an MP4 is its head."""
    span = min(size, draw.choice([64, 256, 1024, size]))
    return draw.randrange(span) if draw.random() < 0.7 else size - 1 - draw.randrange(span)


def _number(draw: random.Random, data: bytearray) -> None:
    """Another number where a text has one; a byte where there is none."""
    starts = [at for at in range(min(len(data), 2000)) if 48 <= data[at] <= 57]
    if not starts:
        data[_place(draw, len(data))] ^= 0xFF
        return
    start = stop = draw.choice(starts)
    while stop < len(data) and 48 <= data[stop] <= 57:
        stop += 1
    data[start:stop] = draw.choice(_DIGITS).encode()


def main(first: int, count: int, done: int, folders: list[Path]) -> Iterator[dict[str, Any]]:
    """What became of each changed file."""
    import warnings

    import seqlake as sl

    warnings.simplefilter("ignore")
    truths = {folder: _answer(sl.open(str(folder / "stranger"))) for folder in folders}
    room = _memory() + ROOM
    every = [(folder, seed) for folder in folders for seed in range(first, first + count)]
    for folder, seed in every[done:]:
        data = changed((folder / "base").read_bytes(), seed)
        for name in ("stranger", "copied"):
            line = {"folder": folder.name, "seed": seed, "name": name}
            yield {**line, "what": "begun"}
            signal.alarm(SECONDS)
            place = folder / name / sl.open(str(folder / name))["a"]["cell"].reference
            place.unlink()
            place.write_bytes(data)
            resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
            ended = _read(folder / name, truths[folder])
            if ended["what"] == "over_2_gb":  # FFmpeg also says so of sizes that no memory could hold
                resource.setrlimit(resource.RLIMIT_AS, (room + 4 * ROOM, resource.RLIM_INFINITY))
                again = _read(folder / name, truths[folder])
                ended = {"what": "refused"} if again == ended else ended
            signal.alarm(0)
            yield {**line, **ended}


def _same(one: Any, two: Any) -> bool:
    import numpy as np

    if getattr(one, "dtype", None) != getattr(two, "dtype", None):
        return False  # of structured arrays that differ in their fields numpy says that they cannot be compared
    return bool(np.array_equal(one, two))


def _read(root: Path, truth: list[Any]) -> dict[str, str]:
    """`right`, `refused`, `bare`, `over_2_gb` or `wrong`."""
    import seqlake as sl
    from seqlake.errors import SeqlakeError

    ds = sl.open(str(root))
    try:
        same = all(_same(a, b) for a, b in zip(_answer(ds), truth, strict=True))
        found = "right" if same else "other"
    except SeqlakeError as error:
        found = "over_2_gb" if _no_memory(error) else "refused"
    except MemoryError as error:
        return {"what": "over_2_gb", "why": repr(error)}
    except Exception as error:
        return {"what": "bare", "why": f"{type(error).__name__}: {error}"}
    try:
        report = ds.validate(depth="decode")
    except Exception as error:
        return {"what": "bare", "why": f"validate: {type(error).__name__}: {error}"}
    said = [str(one) for one in report.findings if one.severity != "note"]
    if any("annot allocate" in one or "MemoryError" in one for one in said):
        return {"what": "over_2_gb", "why": str(said)}
    if found == "other":  # without a hash or a checksum nobody can know
        found = "right" if root.name == "stranger" or said else "wrong"
    return {"what": found, "why": ""}


def _answer(ds: Any) -> list[Any]:
    cell = ds["a"]["cell"]
    count = len(cell)
    return [count, cell.pts, cell[count - 1], cell[count // 2], cell[0]] if count else [0, cell.pts, None, None, None]


def _no_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or "annot allocate" in str(error):
            return True
        error = error.__cause__
    return False


def _memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    for line in main(*map(int, sys.argv[1:4]), list(map(Path, sys.argv[4:]))):
        print(json.dumps(line), flush=True)
