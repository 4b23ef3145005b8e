"""Public paths of 0.1.0 still lead to what was there."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import resolve_name

import pytest

from seqlake.moved import MOVED, RENAMED

NAMES = {
    "seqlake.dataset.inventory": "totals",
    "seqlake.dataset.relocating": "relocate",
    "seqlake.dataset.sink": "TableSink",
    "seqlake.dataset.splits": "assign_splits",
    "seqlake.dataset.trimming": "trim",
    "seqlake.formats.l5kit.data": "AgentDataset",
    "seqlake.formats.l5kit.editing": "zarr_concat",
    "seqlake.formats.l5kit.poses": "relative_poses",
    "seqlake.formats.l5kit.results": "read_gt_csv",
    "seqlake.formats.l5kit.sampling": "EgoDataset",
    "seqlake.training.mosaicml": "StreamingOrder",
}


def test_every_old_path_has_its_case() -> None:
    assert NAMES.keys() == MOVED.keys()


@pytest.mark.parametrize("path", MOVED)
def test_an_old_path_leads_to_the_new_one_and_warns(path: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{path} is {MOVED[path]} now"):
        value = getattr(import_module(path), NAMES[path])
    assert value is getattr(import_module(MOVED[path]), NAMES[path])


@pytest.mark.parametrize(("path", "name"), RENAMED)
def test_so_does_an_old_name(path: str, name: str) -> None:
    here = RENAMED[path, name]
    with pytest.warns(DeprecationWarning, match=f"{path}.{name} is {here.replace(':', '.')} now"):
        assert getattr(import_module(path), name) is resolve_name(here)


def test_every_way_to_import_one_works() -> None:
    code = (
        "import seqlake.dataset.splits as a; from seqlake.dataset import splits as b; "
        "from seqlake.dataset.splits import assign_splits; import seqlake.training.mosaicml; "
        "print(a is b, seqlake.training.mosaicml.StreamingOrder.__module__)"
    )
    ran = subprocess.run([sys.executable, "-W", "always", "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["True", "seqlake.compat.mosaicml.order"]
    assert "<string>:1: DeprecationWarning: seqlake.dataset.splits is seqlake.dataset.reshaping now." in ran.stderr
