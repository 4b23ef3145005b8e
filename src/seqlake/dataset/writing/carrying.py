"""File references of rows on their way into another dataset: copied, linked, or made absolute."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from seqlake.dataset.writing.references import mapped, may_name, refers
from seqlake.errors import UnsafeReferenceError, ValidationError
from seqlake.files.locations import inside, join
from seqlake.files.stores import exists, open_store
from seqlake.spec.rules.references import is_relative
from seqlake.spec.schema import is_list
from seqlake.versions import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.abilities import KeepsFiles
    from seqlake.dataset.writing.staging import Staging
    from seqlake.spec.schema import Schema

FilesMode = Literal["copy", "hardlink", "reference"]


class Carrier:
    """Brings the relative file references of rows from one dataset's root into another's.

    References with a scheme and absolute paths mean the same everywhere and stay as they are.

    Args:
        schema: Of the rows.
        root: What their references resolve against.
        staging: Where the files go.
        mode: `copy`, `hardlink` (a copy where the file system cannot link) or `reference` (absolute locations).
        storage: Options of the store that the root lies in.
        known: What the source keeps of copied-in files: packet indexes, which are not made again, and digests.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        root: str,
        staging: Staging,
        mode: FilesMode,
        storage: Mapping[str, str] | None = None,
        known: KeepsFiles | None = None,
    ) -> None:
        if mode not in {"copy", "hardlink", "reference"}:
            raise ValueError(f"files is 'copy', 'hardlink' or 'reference', found {mode!r}.")
        self._id = schema.id
        self._root = root
        self._storage = storage
        self._staging = staging
        self._mode = mode
        self._known = known
        self._columns = [name for name in schema.names if may_name(schema[name]) and name != schema.id]
        self._plain = {name for name in self._columns if not refers(schema[name])}
        # A file that several rows share is copied once per shard: each shard owns what its rows name.
        self._seen: dict[tuple[int, str, str], str] = {}

    def carry(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with references that hold in the new dataset; their files are there before them."""
        for name in self._columns:
            place = batch.schema.get_field_index(name)
            if name in self._plain and not _any_of_ours(batch.column(place)):
                continue
            cells = batch.column(place).to_pylist()
            ids = [""] * len(cells) if self._id is None else batch.column(self._id).to_pylist()
            moved = [
                mapped(cell, partial(self._moved, column=name, sequence_id=one))
                for cell, one in zip(cells, ids, strict=True)
            ]
            if moved != cells:
                field = batch.schema.field(place)
                batch = batch.set_column(place, field, pa.array(moved, field.type))
        return batch

    def _moved(self, reference: str, *, column: str, sequence_id: str) -> str:
        if not is_relative(reference) or (column in self._plain and not self._is_copied(reference)):
            return reference
        location = join(self._root, reference)
        where = f"Sequence {sequence_id!r}, column {column!r}"
        if not inside(self._root, location):
            raise UnsafeReferenceError(
                f"{where}: {reference!r} leaves the dataset's root {self._root}.",
                hint="Write an absolute reference in its place, or leave the column out.",
            )
        if self._mode == "reference":
            return location
        key = (len(self._staging.written), column, reference)
        if key not in self._seen:
            self._seen = {k: v for k, v in self._seen.items() if k[0] == key[0]}
            try:
                self._seen[key] = self._staging.copy_in(
                    column,
                    sequence_id,
                    location,
                    link=self._mode == "hardlink",
                    storage=self._storage,
                    packets=self._known.kept_packets(reference) if self._known else None,
                    known=self._known.copied_as(reference) if self._known else None,
                )
            except FileNotFoundError as error:
                raise ValidationError(
                    f"{where}: the file {reference!r} is not there.",
                    hint="Run validate(depth='files') to list all that are missing; leave the rows or the column out.",
                ) from error
        return self._seen[key]

    def _is_copied(self, text: str) -> bool:
        """Whether the text of a plain column is the name of a file that was copied in for it."""
        return names.copied_owner(text) is not None and exists(open_store(self._root, storage=self._storage), text)


def _any_of_ours(column: pa.Array) -> bool:
    """Whether any text of a column may name a file that was copied in: a quick look at all of them."""
    while is_list(column.type):
        column = column.flatten()
    text = column.cast(pa.string())
    return bool(pc.any(pc.match_substring(text, f"{names.FILES}/")).as_py())
