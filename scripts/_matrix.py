"""Run a part of the suite with the oldest and the newest versions: `scripts/matrix`. Needs nothing but Python."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints"
TOOLS = CONSTRAINTS / "tests.in"
RESULTS = ROOT / "benchmarks" / "results" / "matrix.json"
PAGE = RESULTS.with_suffix(".md")
HEAVY = ("torch", "torchcodec")
"""Extras that a row leaves out with `--light`: builds for CUDA, gigabytes each."""

BASE = [
    "tests/cli/test_command.py",
    "tests/spec/test_schema.py",
    "tests/windows/test_assemble.py",
    "tests/dataset/test_writer.py",
    "tests/dataset/test_opening.py",
    "tests/dataset/test_query.py",
    "tests/dataset/test_sequence.py",
    "tests/dataset/test_changes.py",
    "tests/dataset/test_statistics.py",
    "tests/shards/test_laws.py",
    "tests/shards/test_reading.py",
    "tests/shards/parquet/test_writing.py",
    "tests/media/test_video.py",
    "tests/media/test_tables.py",
    "tests/media/test_audio.py",
    "tests/media/test_encoding.py",
    "tests/media/test_containers.py",
    "tests/media/test_rare_codecs.py",
    "tests/tables/test_standalone.py",
    "tests/training/test_loader.py",
    "tests/training/test_windows.py",
    "tests/training/frames/test_batch.py",
]
EXTRAS = [
    "tests/cli/test_command.py",
    "tests/media/test_image.py",
    "tests/media/test_image_kinds.py",
    "tests/media/test_spatial.py",
    "tests/media/test_codes.py",
    "tests/formats/hdf5/test_scan.py",
    "tests/formats/mcap/test_scan.py",
    "tests/formats/mcap/test_messages.py",
    "tests/formats/mds/test_scan.py",
    "tests/formats/webdataset",
    "tests/formats/zarr_replay/test_scan.py",
    "tests/formats/rerun",
    "tests/formats/lerobot/test_scan.py",
    "tests/tables/delta/test_contract.py",
    "tests/tables/iceberg/test_contract.py",
    "tests/tables/lance/test_contract.py",
    "tests/tables/ducklake/test_contract.py",
    "tests/shards/test_engines.py",
    "tests/formats/l5kit/test_store.py",
    "tests/formats/l5kit/test_windows.py",
    "tests/viewer/test_server.py",
    "tests/viewer/test_notebook.py",
    "tests/dataset/test_vector_index.py",
    "tests/executors/test_ray.py",
    "tests/executors/test_ray_data.py",
    "tests/spark",
    "tests/stores",
]
"""What each extra is there for."""
TORCH = [
    "tests/training/test_torch.py",
    "tests/training/test_distribution.py",
    "tests/training/test_loader.py",
    "tests/training/rows/test_rows.py",
    "tests/training/frames/test_batch.py",
    "tests/training/frames/test_sounds.py",
    "tests/formats/lerobot/test_drop_in.py",
    "tests/media/test_torchcodec.py",
]
"""What torch and torchcodec are there for."""


def project() -> dict[str, object]:
    """What `pyproject.toml` says of the project."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@dataclass(frozen=True)
class Row:
    """One environment: a version of Python, what it must not be newer or older than, and what runs in it."""

    name: str
    python: str
    constraints: str
    extras: tuple[str, ...] = ()
    part: tuple[str, ...] = tuple(BASE)


ALL = tuple(sorted(set(project()["optional-dependencies"]) - {"all", "dev"}))
WITH_TORCH = ("images", "mds", "torch")
"""What the tests of torch need, where nothing asks for a newer one."""
ROWS = [
    Row("oldest", "3.11", "oldest"),
    Row("oldest-torch", "3.11", "oldest-torch", WITH_TORCH, tuple(TORCH)),
    Row("oldest-extras", "3.11", "oldest-extras", ALL, (*EXTRAS, *TORCH)),
    Row("newest-3.11", "3.11", "newest-3.11"),
    Row("newest-3.12", "3.12", "newest"),
    Row("newest-3.13", "3.13", "newest"),
    Row("newest-extras", "3.12", "newest", ALL, (*EXTRAS, *TORCH)),
]
RESOLVED = {
    "oldest": ("3.11", "lowest-direct", ()),
    "oldest-torch": ("3.11", "lowest-direct", WITH_TORCH),
    "oldest-extras": ("3.11", "lowest-direct", ALL),
    "newest-3.11": ("3.11", "highest", ALL),
    "newest": ("3.12", "highest", ALL),
}
"""Name of a file -> Python, which versions, and which extras count."""
ABOUT = """
`scripts/matrix` makes an environment of each row with the versions that `constraints/` names, installs seqlake there
from this checkout, and runs a part of the suite with it: reading, writing, SQL, pictures and sound, training; of the
extras the tests of what each is there for. A row that failed says so. `scripts/soak` runs it, before each release.
"""
SHOWN = ["numpy", "pyarrow", "duckdb", "av", "obstore", "click"]


def run(*command: str | Path, **settings: object) -> subprocess.CompletedProcess[str]:
    """A command that must end well."""
    return subprocess.run([str(one) for one in command], check=True, text=True, **settings)


def installer(work: Path) -> str:
    """Where uv is, which resolves to the oldest and installs in seconds; installed for this run where there is none."""
    if there := shutil.which("uv"):
        return there
    run(sys.executable, "-m", "venv", work / "tools")
    run(work / "tools/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv>=0.5")
    return str(work / "tools/bin/uv")


def resolve(uv: str) -> None:
    """Write the files of constraints anew."""
    for name, (python, which, extras) in RESOLVED.items():
        out = CONSTRAINTS / f"{name}.txt"
        out.unlink(missing_ok=True)  # what stands there would be preferred
        more = [word for extra in extras for word in ("--extra", extra)]
        command = ["pip", "compile", "--quiet", "--no-annotate", "--no-header", "--resolution", which]
        run(uv, *command, "--python-version", python, *more, "pyproject.toml", TOOLS, "-o", out, cwd=ROOT)
        kept = [line for line in out.read_text().splitlines() if not line.startswith(("nvidia-", "triton", "cuda-"))]
        out.write_text("\n".join(kept) + "\n")


def python_of(version: str) -> str | None:
    """An interpreter of that version; None where there is none."""
    homes = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *(str(one / "bin/python") for one in sorted(homes.glob(f"{version}.*")))]
    for candidate in candidates:
        code = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
        if shutil.which(candidate) and not subprocess.run([candidate, "-c", code], check=False, stderr=-3).returncode:
            return candidate
    return None


def measure(row: Row, uv: str, environments: Path, *, light: bool) -> dict[str, object] | None:
    """Install and run one row."""
    interpreter = python_of(row.python)
    if interpreter is None:
        print(f"{row.name}: no Python {row.python} here, left out")  # noqa: T201
        return None
    place = environments / row.name
    python = place / "bin/python"
    extras = [name for name in row.extras if not (light and name in HEAVY)]
    part = [one for one in row.part if not (light and row.extras and one in TORCH)]
    if not part:
        print(f"{row.name}: without torch nothing is left of it, left out")  # noqa: T201
        return None
    wanted = f"[{','.join(extras)}]" if extras else ""
    run(uv, "venv", "--quiet", "--clear", "--python", interpreter, place)
    bounds = ["-c", CONSTRAINTS / f"{row.constraints}.txt", "-r", TOOLS]
    run(uv, "pip", "install", "--quiet", "--python", python, *bounds, f"{ROOT}{wanted}")
    run(uv, "pip", "check", "--quiet", "--python", python)
    run(place / "bin/seqlake", "--version", cwd=environments, stdout=subprocess.DEVNULL)
    begun = time.monotonic()
    quiet = ["-q", "-n", os.environ.get("SEQLAKE_TEST_PROCESSES", "0"), "-p", "no:cacheprovider", "-W", "default"]
    log = environments / f"{row.name}.log"
    with log.open("w") as out:
        ran = subprocess.run([str(python), "-m", "pytest", *quiet, *part], cwd=ROOT, check=False, stdout=out)
    said = log.read_text()
    sys.stdout.write(said[-8000:])
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", said[-400:])}
    listed = json.loads(
        run(uv, "pip", "list", "--format", "json", "--python", python, stdout=subprocess.PIPE, stderr=-3).stdout
    )
    versions = {one["name"]: one["version"] for one in listed}
    return {
        "extras": extras,
        "python": run(python, "-c", "import platform; print(platform.python_version())", stdout=-1).stdout.strip(),
        "versions": versions,
        "counts": counts,
        "ended": ran.returncode,
        "seconds": round(time.monotonic() - begun),
        "date": datetime.now(UTC).date().isoformat(),
    }


def page(results: dict[str, dict[str, object]]) -> str:
    """The page of results."""
    lines = [
        "# Oldest and newest versions, measured",
        "",
        *wrap(ABOUT.strip(), 118),
        "",
        "| row | Python | " + " | ".join(SHOWN) + " | extras | passed | skipped | failed | s | date |",
        "|---|---|" + "---|" * len(SHOWN) + "---|---|---|---|---|---|",
    ]
    for row in ROWS:
        if (one := results.get(row.name)) is None:
            continue
        counts = one["counts"]
        failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
        cells = [f"`{row.name}`", one["python"], *(one["versions"].get(name, "") for name in SHOWN)]
        cells += [len(one["extras"]) or "none", counts.get("passed", 0), counts.get("skipped", 0)]
        cells += [failed if failed or not one["ended"] else "did not end", one["seconds"], one["date"]]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    left = sorted(set(ALL) - {name for one in results.values() for name in one["extras"]})
    missing = [f"`{row.name}`" for row in ROWS if row.name not in results]
    if missing:
        lines += ["", f"Not measured here: {', '.join(missing)}."]
    if left:
        lines += ["", f"Extras in no row that was measured: {', '.join(f'`{name}`' for name in left)}."]
    wide = [row.name for row in ROWS if results.get(row.name, {}).get("extras")]
    names = sorted({name for row in wide for name in results[row]["versions"] if name in direct()})
    if wide:
        lines += ["", "## What the extras bring", "", "| package | " + " | ".join(f"`{row}`" for row in wide) + " |"]
        lines += ["|---|" + "---|" * len(wide)]
        lines += [
            "| " + " | ".join([name, *(results[row]["versions"].get(name, "") for row in wide)]) + " |"
            for name in names
        ]
    return "\n".join(lines) + "\n"


def direct() -> set[str]:
    """The packages that `pyproject.toml` names."""
    about = project()
    wanted = list(about["dependencies"])
    for name, needs in about["optional-dependencies"].items():
        wanted += [] if name in {"all", "dev"} else needs
    return {re.split(r"[\[<>=]", one)[0].lower().replace("_", "-") for one in wanted}


def main() -> int:
    """What the command does."""
    parser = argparse.ArgumentParser(prog="scripts/matrix", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(row.name for row in ROWS)}; else all")
    parser.add_argument("--resolve", action="store_true", help="write constraints/ anew first")
    parser.add_argument("--light", action="store_true", help=f"without the extras {', '.join(HEAVY)}")
    parser.add_argument("--page", action="store_true", help="write the page of what was measured, and nothing else")
    parser.add_argument("--environments", type=Path, help="a folder that keeps them; else they are removed")
    given = parser.parse_args()
    if unknown := set(given.rows) - {row.name for row in ROWS}:
        parser.error(f"no row is called {', '.join(sorted(unknown))}")
    if given.page:
        PAGE.write_text(page(json.loads(RESULTS.read_text())))
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as work:
        uv = installer(Path(work))
        if given.resolve:
            resolve(uv)
        environments = (given.environments or Path(work) / "environments").absolute()
        environments.mkdir(parents=True, exist_ok=True)
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        for row in ROWS:
            if given.rows and row.name not in given.rows:
                continue
            one = measure(row, uv, environments, light=given.light)
            if one is not None:
                results[row.name] = one
                failed |= bool(one["ended"])
                RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
                PAGE.write_text(page(results))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
