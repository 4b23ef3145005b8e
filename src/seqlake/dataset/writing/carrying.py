"""File references of rows on their way into another dataset: copied, linked, or made absolute."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import KeepsFiles, OpensFiles, ability
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.selection import Selection
from seqlake.dataset.writing.references import mapped, may_name, refers
from seqlake.errors import UnsafeReferenceError, ValidationError
from seqlake.files.locations import inside, join
from seqlake.files.stores import exists, open_store
from seqlake.spec.rules.references import is_relative
from seqlake.spec.schema import is_list
from seqlake.versions import names
from seqlake.windows.sources import MediaFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        inside: Opens files of the source that lie in others.

    Attributes:
        staging: Where the files go.
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
        inside: OpensFiles | None = None,
    ) -> None:
        if mode not in {"copy", "hardlink", "reference"}:
            raise ValueError(f"files is 'copy', 'hardlink' or 'reference', found {mode!r}.")
        self._id = schema.id
        self._root = root
        self._storage = storage
        self.staging = staging
        self._is_home = staging.root.rstrip("/") == root.rstrip("/")
        self._mode = mode
        self._known = known
        self._inside = inside
        self._columns = [name for name in schema.names if may_name(schema[name]) and name != schema.id]
        self._plain = {name for name in self._columns if not refers(schema[name])}
        # A file that several rows share is copied once per shard: each shard owns what its rows name.
        self._shard = 0
        self._seen: dict[tuple[str, str], str] = {}

    @classmethod
    def of(cls, rows: Any, schema: Schema, staging: Staging, /) -> Carrier | None:
        """For rows that somebody gives to a dataset; None where they come from none, so that references mean here.

        Of an older version of the same dataset, what was copied in gets a second name (a link, where the file system
        can): a vacuum removes the first with the last version whose rows name it.

        Args:
            rows: What was given: a selection, Arrow data, dicts.
            schema: Of the batches that will be carried.
            staging: Where the files go.
        """
        if not isinstance(rows, Selection):
            return None
        excerpt = Excerpt.of(rows)
        place, known = MediaFiles.of(excerpt), ability(excerpt, KeepsFiles)
        carrier = cls(schema, root=place.root, staging=staging, mode="copy", storage=place.storage, known=known)
        carrier._mode = "hardlink" if carrier._is_home else "copy"
        return carrier

    def carry(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with references that hold in the new dataset; their files are there before them."""
        with self.staging.ahead():
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
        if not is_relative(reference):
            return reference
        if (self._is_home or column in self._plain) and not self._is_copied(reference):
            return reference
        shard = len(self.staging.written)
        if shard != self._shard:
            self._shard, self._seen = shard, {}
        if (column, reference) not in self._seen:
            self._seen[column, reference] = self._brought(reference, column, sequence_id)
        return self._seen[column, reference]

    def _brought(self, reference: str, column: str, sequence_id: str) -> str:
        location = join(self._root, reference)
        where = f"Sequence {sequence_id!r}, column {column!r}"
        if not inside(self._root, location):
            raise UnsafeReferenceError(
                f"{where}: {reference!r} leaves the dataset's root {self._root}.",
                hint="Write an absolute reference in its place, or leave the column out.",
            )
        if self._mode == "reference":
            return location
        try:
            return self.staging.copy_in(
                column,
                sequence_id,
                location,
                link=self._mode == "hardlink",
                storage=self._storage,
                packets=self._known.kept_packets(reference) if self._known else None,
                known=self._known.copied_as(reference) if self._known else None,
                blob=self._inside.file_within(reference) if self._inside else None,
            )
        except FileNotFoundError as error:
            raise ValidationError(
                f"{where}: the file {reference!r} is not there.",
                hint="Run validate(depth='files') to list all that are missing; leave the rows or the column out.",
            ) from error

    def _is_copied(self, text: str) -> bool:
        """Whether the text of a plain column is the name of a file that was copied in for it."""
        return names.copied_owner(text) is not None and exists(open_store(self._root, storage=self._storage), text)


def brought(rows: Any, cells: pa.Table, schema: Schema, staging: Staging, /) -> pa.Table:
    """Given cells with references that hold in the dataset they are given to; see `Carrier.of`."""
    carrier = Carrier.of(rows, schema.select(cells.column_names), staging)
    if carrier is None or not cells.num_rows:
        return cells
    return pa.Table.from_batches([carrier.carry(batch) for batch in cells.to_batches()])


def _any_of_ours(column: pa.Array) -> bool:
    """Whether any text of a column may name a file that was copied in: a quick look at all of them."""
    while is_list(column.type):
        column = column.flatten()
    text = column.cast(pa.string())
    return bool(pc.any(pc.match_substring(text, f"{names.FILES}/")).as_py())
