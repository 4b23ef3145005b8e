"""File references in cells: which columns name files, and how a cell is changed that does."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from seqlake.files.locations import is_local, local_path
from seqlake.spec.rules.references import is_relative, names_its_file, paths_in
from seqlake.spec.schema import is_binary, is_list, is_text

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from seqlake.spec.schema import Column, Schema


def sizes_seen(batch: pa.RecordBatch, schema: Schema, /, *, root: str, copied: str) -> dict[str, int]:
    """Reference -> size of the files below a local root that file cells name and that were not copied in.

    What a later validation compares with. Other places are not asked: it would take a request for each file.

    Args:
        batch: Rows on their way into a shard.
        schema: Of the rows.
        root: The dataset's.
        copied: The folder of copied-in files, whose sizes are known.
    """
    if not is_local(root):
        return {}
    top, linked_files = str(local_path(root)), {}
    for name in batch.schema.names:
        if schema[name].medium is None or not refers(schema[name]):
            continue
        for reference in {path for cell in batch.column(name).to_pylist() for path, _ in paths_in(cell)}:
            if reference.startswith(f"{copied}/") or not is_relative(reference) or ".." in reference.split("/"):
                continue
            with suppress(OSError, ValueError):  # not there, or no name: validation says so
                linked_files[reference] = os.stat(f"{top}/{reference}").st_size  # noqa: PTH116 - for every row
    return linked_files


def refers(column: Column) -> bool:
    """Whether the cells of a column name files."""
    if column.category == "file" or (column.inline and not is_binary(column.arrow)):
        return True
    return column.category == "frames" and is_text(column.arrow.value_type)


def may_name(column: Column) -> bool:
    """Whether cells of a column may name files that were copied in: a plain text may, where a `File` was given."""
    kind = column.arrow
    return refers(column) or is_text(kind.value_type if is_list(kind) else kind)


def mapped(cell: Any, move: Callable[[str], str]) -> Any:
    """A cell with each of its references moved: text, a list of texts, a struct with `url`, or a path without bytes."""
    if isinstance(cell, str):
        return move(cell)
    if isinstance(cell, list):
        return [mapped(one, move) for one in cell]
    if names_its_file(cell):
        return {**cell, "path": move(cell["path"])}
    if isinstance(cell, dict) and isinstance(cell.get("url"), str):
        return {**cell, "url": move(cell["url"])}
    return cell
