"""Exports that may die of it, see `tests/dying.py`: the command line's way, so that the same call goes on."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from tests.dying import serve

import seqlake as sl
from seqlake.errors import DatasetExistsError

FORMATS = ("huggingface", "l5kit", "lerobot", "mcap", "mds", "rerun", "rlds", "webdataset", "zarr_replay")


def export(arm: Any, source: str, home: str, to: str, options: dict[str, Any]) -> str:
    """Convert into `<home>/out`; whether it did, or found it done."""
    os.environ["XDG_CACHE_HOME"] = f"{home}/cache"
    opened = sl.open(source)
    arm(home)
    try:
        sl.convert(opened, f"{home}/out", to=to, work=True, workers=1, progress=False, **options)
    except DatasetExistsError:
        return "there"
    return "done"


if __name__ == "__main__":
    # What every child would import again; none of it begins a thread.
    packages = ("av", "mcap.writer", "numcodecs", "pandas", "pyarrow.parquet")
    for name in (*packages, *(f"seqlake.formats.{one}" for one in FORMATS)):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    serve(export)
