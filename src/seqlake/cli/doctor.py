"""`seqlake doctor`: what is installed, what is missing, how large it is."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from seqlake.cli._output import Output, output_options, size, table

CORE = ("numpy", "pyarrow", "duckdb", "av", "obstore", "click", "tqdm")
EXTRAS = {
    "torch": "torch", "images": "simplejpeg", "spatial": "trimesh", "iceberg": "pyiceberg", "delta": "deltalake",
    "lance": "pylance", "vortex": "vortex-data", "l5kit": "numcodecs", "mds": "zstandard", "mcap": "mcap",
    "hdf5": "h5py", "ray": "ray", "viewer": "starlette", "rerun": "rerun-sdk", "torchcodec": "torchcodec",
}  # fmt: skip


@click.command()
@output_options
def command(*, output: Output) -> None:
    """Say which packages are installed, which extras are missing, and how much disk they take."""
    rows: list[dict[str, Any]] = [_package("seqlake", "")]
    rows += [_package(name, "core") for name in CORE]
    rows += [_package(name, extra) for extra, name in EXTRAS.items()]
    total = sum(row["nbytes"] for row in rows if row["part"] in {"", "core"})
    system = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hard_links_and_fork": sys.platform == "linux",
    }
    cells = [
        [row["package"], row["version"] or "missing", size(row["nbytes"]) if row["version"] else "",
         "" if row["version"] else f"pip install 'seqlake[{row['part']}]'"]
        for row in rows
    ]  # fmt: skip
    text = table(cells, head=["package", "version", "size", "to install"], fit=output.truncate)
    text += f"\n\nPython {system['python']} on {system['platform']}\ncore packages: {size(total)}"
    output.document({**system, "packages": rows, "core_nbytes": total}, text=text)


def _package(name: str, part: str) -> dict[str, Any]:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return {"package": name, "part": part, "version": None, "nbytes": 0}
    # Compiled caches are Python's, and come and go.
    files = [file for file in found.files or () if file.suffix != ".pyc"]
    nbytes = sum(_size_of(Path(str(found.locate_file(file)))) for file in files)
    return {"package": name, "part": part, "version": found.version, "nbytes": nbytes}


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
