"""What `dataset.hf_dataset` is asked for: the steps without videos, as a `datasets.Dataset` that gives tensors."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from seqlake.errors import DatasetNotFoundError, MissingDependencyError
from seqlake.files.locations import is_local
from seqlake.plugins import require

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

_PLAIN = frozenset({"string", "bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))})
_PLAIN |= {"float16", "float32", "float64"}
_LANGUAGE = frozenset({"language_persistent", "language_events"})  # annotations, which stay as they are


def steps_of(
    root: Path, features: Mapping[str, Mapping[str, Any]], /, *, episodes: Collection[int] | None = None
) -> Any:
    """A `datasets.Dataset` of the folder's steps, in the order of its files, mapped from that package's cache.

    Args:
        root: The folder.
        features: Name -> dtype and shape, as `info.json` has them.
        episodes: Numbers of the episodes to keep; all by default.

    Raises:
        DatasetNotFoundError: The folder is not on this machine.
        MissingDependencyError: `datasets` or torch is not installed.
    """
    datasets = _package()
    if not is_local(str(root)) or not root.is_dir():
        raise DatasetNotFoundError(
            f"{root} is no folder of this machine, and `datasets` reads its Parquet files itself.",
            path=str(root),
            hint="Ask the dataset for items, or download the folder first.",
        )
    kept = None if episodes is None else pc.field("episode_index").isin(sorted({*episodes}))
    known = all(one["dtype"] in {*_PLAIN, "video", "image"} for one in features.values())
    made_of = hf_features(features) if known else None  # of other kinds the files themselves say what they are
    paths = [str(path) for path in sorted((root / "data").glob("*/*.parquet"))]
    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        steps = datasets.Dataset.from_parquet(paths, filters=kept, features=made_of)
    finally:
        if not hidden:
            datasets.enable_progress_bars()
    steps.set_transform(_tensors)
    return steps


def hf_features(features: Mapping[str, Mapping[str, Any]], /) -> Any:
    """`datasets.Features` of steps; videos are none of them."""
    datasets = _package()
    chosen: dict[str, Any] = {}
    for name, one in features.items():
        shape: Sequence[int] = tuple(one["shape"])
        if one["dtype"] == "image":
            chosen[name] = datasets.Image()
        elif one["dtype"] == "video":
            continue
        elif shape in {(), (1,)}:
            chosen[name] = datasets.Value(one["dtype"])
        elif len(shape) == 1:
            chosen[name] = datasets.Sequence(datasets.Value(one["dtype"]), length=shape[0])
        else:
            chosen[name] = getattr(datasets, f"Array{len(shape)}D")(shape=shape, dtype=one["dtype"])
    return datasets.Features(chosen)


def _package() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        text = "This needs the package 'datasets', as lerobot does: pip install datasets"
        raise MissingDependencyError(text) from error


def _tensors(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Numbers as tensors, pictures as float32 [channels, height, width] from 0 to 1; all else as it is."""
    torch = require("torch", extra="torch")

    def tensor(value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        if not hasattr(value, "mode"):
            return torch.tensor(value)
        pixels = np.array(value)
        pixels = np.ascontiguousarray(np.moveaxis(pixels.reshape(*pixels.shape[:2], -1), -1, 0))
        frame = torch.from_numpy(pixels)
        return frame.to(torch.float32).div_(255) if pixels.dtype == np.uint8 else frame

    kept = batch.keys() & _LANGUAGE
    return {name: values if name in kept else [tensor(one) for one in values] for name, values in batch.items()}
