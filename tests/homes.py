"""A small dataset in each home that one may have, brought back as it was for every try."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

PLACES = {
    "standalone": "{folder}/{name}",
    "delta": "delta:{folder}/{name}",
    "iceberg": "iceberg:{folder}/warehouse/robots.{name}",
    "ducklake": "ducklake:{folder}/meta.duckdb?table={name}",
    "ducklake, sqlite": "ducklake:sqlite:{folder}/meta.sqlite?table={name}",
}
QUICK = [pytest.param(one, marks=pytest.mark.soak) if one == "ducklake" else one for one in PLACES]
"""For tests of many verbs: a catalog in a DuckDB file is opened anew for each, seven times as slow as one in SQLite."""
_NAME = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f-]{27}|\d+")


class Home:
    """Four versions of six sequences with a file and a label each; lakes note absolute places: all lies where it lay.

    Args:
        kind: Of `PLACES`.
        folder: An empty one.
        steps: Of each sequence.
    """

    def __init__(self, kind: str, folder: Path, *, steps: int = 20) -> None:
        self.kind, self.steps = kind, steps
        self.folder, self._saved, self._log = folder / "work", folder / "saved", folder / "log.bin"
        self.folder.mkdir()
        self._log.write_bytes(bytes(range(256)) * 4)
        action = sl.Trajectory(dim=2, fps=10, units="rad")
        schema = {"action": action, "split": pa.string(), "log": sl.ColumnType("mcap")}
        ds = sl.create(self.place(), sl.Schema(schema))
        for number in range(0, 6, 2):
            ds.append([self.row(number), self.row(number + 1)])
        ds.add_column("grade", pa.int64(), values={f"ep_{number}": number for number in range(6)})
        del ds
        shutil.copytree(self.folder, self._saved)

    def place(self, name: str = "ds") -> str:
        """The address of a dataset of this name."""
        return PLACES[self.kind].format(folder=self.folder, name=name)

    def row(self, number: int, *, steps: int | None = None) -> dict[str, object]:
        """A sequence."""
        action = np.full((steps or self.steps, 2), number, np.float64)
        split = "val" if number % 2 else "train"
        return {"sequence_id": f"ep_{number}", "action": action, "split": split, "log": sl.File(self._log)}

    def fresh(self) -> None:
        """As it was made."""
        shutil.rmtree(self.folder)
        shutil.copytree(self._saved, self.folder)

    def files(self, name: str) -> Counter[str]:
        """How many files of each kind a dataset has; logs and metadata tell how often somebody tried, so not those."""
        found: Counter[str] = Counter()
        for path in self.folder.rglob("*"):
            within = path.relative_to(self.folder).as_posix()
            if path.is_file() and f"{name}/" in within and not re.search(r"versions/|_log/|\.json$|oldest$", within):
                kind = re.sub(r"/[0-9a-f]{2}/", "/", _NAME.sub("#", within))
                found[re.sub(r"-[0-9a-z#]+(\.\w+)?$", r"-#\1", kind)] += 1
        return found


def rows(place: str) -> list[str]:
    """What a dataset holds, but for the names of copied-in files."""
    return sorted(map(str, sl.open(place).to_arrow().drop_columns(["log"]).to_pylist()))
