"""Datasets of multimodal temporal sequences: curate them and train on them from the same files."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Names resolve on first use, so that `seqlake --help` and `import seqlake` stay light.
_HOME = {
    "Audio": "spec.column_types",
    "Cache": "training.cache",
    "Column": "spec.schema",
    "ColumnType": "spec.column_types",
    "Dataset": "dataset.dataset",
    "Depth": "spec.column_types",
    "Embedding": "spec.column_types",
    "Encoding": "media",
    "File": "dataset.writing.ingest",
    "Finding": "spec.findings",
    "Image": "spec.column_types",
    "Loader": "training.loader",
    "Metadata": "spec.metadata",
    "Mix": "training.mixtures.schedule",
    "Report": "spec.findings",
    "Schema": "spec.schema",
    "Selection": "dataset.selection",
    "SequenceView": "dataset.reading.sequence",
    "Shuffle": "training.order",
    "Spatial3D": "spec.column_types",
    "Spatial4D": "spec.column_types",
    "Statistics": "dataset.statistics",
    "Trajectory": "spec.column_types",
    "VectorIndex": "dataset.similarity",
    "Version": "protocols",
    "Video": "spec.column_types",
    "Whole": "windows.spec",
    "Window": "windows.spec",
    "Writer": "dataset.writing.writer",
    "assign_splits": "dataset.reshaping",
    "clock_of": "spec.alignment",
    "compact": "dataset.reshaping",
    "compute": "computing",
    "contact_sheet": "dataset.drawing",
    "convert": "conversion.convert",
    "create": "dataset.opening",
    "diff": "dataset.reading.difference",
    "drop_copies": "copies.preparing",
    "duplicates": "dataset.similarity",
    "extract_files": "dataset.changing.inlining",
    "index": "dataset.changing.indexing",
    "init": "dataset.init",
    "inline_files": "dataset.changing.inlining",
    "merge": "dataset.reshaping",
    "nearest": "dataset.similarity",
    "open": "dataset.opening",
    "outliers": "dataset.statistics",
    "plan_inlining": "dataset.changing.inlining",
    "plan_relocation": "dataset.changing.relocating",
    "plan_splits": "dataset.reshaping",
    "prepare": "copies.preparing",
    "push": "conversion.pushing",
    "ranks": "training.distributed",
    "relocate": "dataset.changing.relocating",
    "repack": "dataset.reshaping",
    "resample": "dataset.reshaping",
    "sample_at": "spec.alignment",
    "scan": "dataset.opening",
    "seconds": "windows.spec",
    "segment": "dataset.reshaping",
    "split": "dataset.reshaping",
    "statistics": "dataset.statistics",
    "subset": "dataset.reshaping",
    "trim": "dataset.reshaping",
    "validate": "dataset.validation",
    "vector_index": "dataset.similarity",
    "view": "viewer.serving",
}
_MODULES = ("abilities", "compat", "errors", "formats", "media", "protocols", "ray", "shares", "spark", "testing")

__all__ = sorted([*_HOME, *_MODULES])  # noqa: PLE0605 - one sorted list, made from the table above


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"seqlake.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'seqlake' has no attribute {name!r}")
    value = getattr(import_module(f"seqlake.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
