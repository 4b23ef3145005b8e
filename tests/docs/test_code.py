"""The code in README and docs runs as written."""

from __future__ import annotations

import doctest
import importlib
import linecache
import pkgutil
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.files.stores import open_blob
from seqlake.shards import parquet
from seqlake.testing import samples

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    text = page.read_text()
    return [(text[: m.start(1)].count("\n"), m.group(1)) for m in BLOCK.finditer(text)]


WITH_CODE = [page for page in PAGES if blocks(page)]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_runs_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's blocks share one namespace and one empty folder, as for somebody who types them in."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for line, code in blocks(page):
        # Newlines in front keep the page's own line numbers in tracebacks.
        exec(compile("\n" * line + code, str(page), "exec"), names)


ROOMS = [one.name for one in pkgutil.iter_modules(sl.__path__) if one.name not in {"cli", "testing"}]
"""Every room, and every module that stands alone."""


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the examples of docstrings open."""
    folder = tmp_path_factory.mktemp("sample")
    samples.arm_dataset(folder / "data" / "arm", count=64)
    shard = next((folder / "data" / "arm" / "data").glob("*.parquet"))
    shutil.copy(shard, folder / "part-0.parquet")
    pq.write_table(pq.read_table(shard), folder / "theirs.parquet", compression="none", use_dictionary=False)
    return folder


@pytest.fixture
def names(sample: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the examples of docstrings take as given, besides what their module knows."""
    monkeypatch.chdir(sample)
    dataset = sl.open("data/arm")
    batch = dataset.to_arrow().combine_chunks().to_batches()[0]
    writer = parquet.create(sample / "written.parquet", dataset.schema)
    writer.write(batch)
    window = {"obs_state": range(-1, 1), "action": range(16)}
    return {
        "np": np,
        "pa": pa,
        "Path": Path,
        "Schema": sl.Schema,
        "Trajectory": sl.Trajectory,
        "Window": sl.Window,
        "open_blob": open_blob,
        "dataset": dataset,
        "table": dataset.table,
        "schema": dataset.schema,
        "batch": batch,
        "written": writer.close(),
        "shard": dataset.shards()[0],
        "rewards": dataset.to_arrow()["reward"].to_numpy(),
        "loader": sl.Loader(dataset, window=window, batch_size=64),
    }


@pytest.mark.parametrize("room", ROOMS)
def test_examples_of_docstrings_give_what_they_say(room: str, names: dict[str, object]) -> None:
    linecache.clearcache()  # before each docstring doctest would look again at every file that is in it
    package = importlib.import_module(f"seqlake.{room}")
    inner = pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}.")
    modules = [package, *(importlib.import_module(one.name) for one in inner)]
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    told = [
        doctest.testmod(m, extraglobs={k: v for k, v in names.items() if not hasattr(m, k)}, optionflags=flags)
        for m in modules
    ]
    assert sum(one.failed for one in told) == 0
    if room in {"spec", "files", "shards"}:
        assert sum(one.attempted for one in told) > 10


def test_there_are_pages_with_code() -> None:
    assert ROOT / "README.md" in WITH_CODE


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
