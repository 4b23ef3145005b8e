"""Checks what is at a location, also where its metadata are too damaged to open."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.dataset import opening
from seqlake.dataset.reading import plain
from seqlake.dataset.validation.checking import report, unreadable
from seqlake.errors import CorruptFileError, InvalidMetadataError, SchemaMismatchError, SeqlakeError
from seqlake.executors import executor_of
from seqlake.files.reading import BlobFile
from seqlake.files.stores import exists, open_store, read_all
from seqlake.spec.findings import Finding, Report
from seqlake.spec.rules import check_arrow, check_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from seqlake.dataset.selection import Selection
    from seqlake.executors import Executor
    from seqlake.protocols import Depth, Version


def validate(
    source: Selection | str | os.PathLike[str],
    /,
    *,
    depth: Depth = "files",
    version: Version | int | str | None = None,
    storage: Mapping[str, str] | None = None,
    on: str | Executor | None = None,
    workers: int | None = None,
) -> Report:
    """Check a dataset, or the rows of a selection, against the format.

    Args:
        source: A dataset, a selection, a scanned folder; or a location, whose metadata may be too damaged to open.
        depth: `metadata`: what `mixtrain.json`, the schema and the table's log say. `rows`: also every cell, and the
            checksum of every page. `files`: also every file that a row names: whether it is there and can be opened,
            is what its column declares, and has a frame for every step; copied-in files are compared with their
            SHA-256. `decode`: also every frame, picture and sample is decoded.
        version: Of a location: this version instead of the newest.
        storage: Of a location: options of its store.
        on: What looks at files: `"processes"`, `"ray"` or an `Executor`; by default threads of this process.
        workers: Tasks at a time of what `on` names.

    Returns:
        Every finding; nothing is raised for what is wrong with the data.

    Raises:
        ValueError: No such depth, or one that has nothing to divide among shares.
        DatasetNotFoundError: No Mixtrain dataset is at the location.

    Example:
        ```python
        report = validate("data/pick-n-place", depth="rows")
        report.raise_for_errors()
        ```
    """
    executor = None if on is None else executor_of(on, workers=workers)
    if not isinstance(source, str | os.PathLike):
        return report(source, depth=depth, executor=executor)
    try:
        return report(opening.open(source, version=version, storage=storage), depth=depth, executor=executor)
    except (InvalidMetadataError, SchemaMismatchError, CorruptFileError) as error:
        location = opening.place_of(source)
        reasons = list(_why_not(location, error, storage))
        return Report(reasons, subject=location, depth=depth)


def _why_not(location: str, error: SeqlakeError, storage: Mapping[str, str] | None) -> Iterator[Finding]:
    """Why a dataset cannot be opened: what its metadata and the columns of each file say, else the error itself."""
    store = open_store(location, storage=storage)
    findings = list(check_metadata(read_all(store.blob(opening.METADATA)))) if exists(store, opening.METADATA) else []
    if not isinstance(error, InvalidMetadataError):
        for path in plain.parquet_paths(location, storage=storage)[1]:
            try:
                findings += check_arrow(pq.read_schema(BlobFile(store.blob(path))), location=path)
            except (OSError, pa.ArrowException) as broken:
                findings.append(unreadable(broken, path))
    yield from findings
    if all(finding.severity != "error" for finding in findings):
        yield Finding(code="V701", severity="error", message=str(error), location=location)
