"""A table as the target of a conversion: workers stage parts, one commit shows them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqlake.dataset.writing.carrying import Carrier, FilesMode
from seqlake.dataset.writing.ingest import with_lengths
from seqlake.dataset.writing.pictures import Pictures
from seqlake.dataset.writing.splitting import Splitter
from seqlake.dataset.writing.staging import ShardShape, Staging
from seqlake.errors import CommitConflictError, ValidationError
from seqlake.protocols import Change, Transaction
from seqlake.receipts import by_part
from seqlake.versions import markers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from seqlake.abilities import KeepsFiles, OpensFiles
    from seqlake.protocols import Version
    from seqlake.spec.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink:
    """A table wrapped as a `Sink`; picklable, so that parts are staged anywhere.

    Attributes:
        table: Where the rows go.
        schema: Of the rows.
        transaction: Under which every part is staged: `table.begin()`, or that of a conversion that was interrupted.
        shape: How shards are written.
        files: What happens to relative file references: `copy`, `hardlink` or `reference`.
        storage: Options of the store that the source's files lie in; never printed.
        known: What the source keeps of copied-in files, with which they are compared.
        inside: Opens files of the source that lie in others.
        pictures: Columns of images that come in another form than the schema has.
        split: Columns of videos that come as parts of shared files, and become files of their own.
        guarded: After each part it is asked whether the transaction still goes on, and the part is removed if not: for
            engines that discard or commit it while tasks of theirs are still at work.

    Example:
        ```python
        sink = TableSink(table=dataset.table, schema=dataset.schema, transaction=dataset.table.begin())
        receipts = [sink.write(0, batches, root=source.root)]
        sink.commit(receipts)
        ```
    """

    table: Any
    schema: Schema
    transaction: Transaction
    shape: ShardShape = field(default_factory=ShardShape)
    files: FilesMode = "copy"
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    known: KeepsFiles | None = field(default=None, repr=False)
    inside: OpensFiles | None = field(default=None, repr=False)
    pictures: Pictures = field(default_factory=Pictures)
    split: Sequence[str] = ()
    guarded: bool = False

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> dict[str, Any]:
        """Stage one part and its files.

        Args:
            part: Its number. The same part again replaces itself: the commit takes the last receipt.
            rows: Batches in the schema's logical types, but for `pictures` and `split`.
            root: What the relative file references of these rows resolve against.

        Returns:
            The part's receipt: plain values and `Written`, so that it pickles and can be kept as JSON.

        Raises:
            ValidationError: A file that a row names is not there.
            CommitConflictError: The transaction is over (`guarded`); nothing of the part is left.
            OSError: The place cannot be written; nothing of the part is left.
        """
        if part < 0:
            raise ValueError(f"A part's number is at least 0, found {part}.")
        staging = Staging(self.table, self.schema, shape=self.shape, transaction=self.transaction, prefix=_digits(part))
        splitter = Splitter(
            self.schema, self.split, root=root, staging=staging, storage=self.storage, inside=self.inside
        )
        carried = self.schema.without([*self.pictures.forms, *self.split])
        carrier = Carrier(
            carried,
            root=root,
            staging=staging,
            mode=self.files,
            storage=self.storage,
            known=self.known,
            inside=self.inside,
        )
        try:
            for batch in rows:
                for piece in staging.parts(batch):
                    turned = self.pictures.turned(carrier.carry(piece), self.schema, staging)
                    staging.write(with_lengths(splitter.turned(turned), self.schema))
            staging.close_shard()
            self._refuse_late(part)
        except BaseException:
            staging.abandon()
            raise
        return {"part": part, "written": list(staging.written)}

    def _refuse_late(self, part: int) -> None:
        if self.guarded and not markers.is_announced(self.table.store, self.transaction.id):
            raise CommitConflictError(f"Part {part} came too late: transaction {self.transaction.id} is over.")

    def commit(self, receipts: Sequence[object], /) -> Version:
        """Show every part at once, in the order of their numbers.

        Args:
            receipts: What `write` returned; of two for one part the later one counts.

        Raises:
            DuplicateSequenceError: An id occurs twice, or is in the table already.
            CommitConflictError: A rival changed what this commit needs.
        """
        for receipt in receipts:
            if not isinstance(receipt, dict) or not {"part", "written"} <= receipt.keys():
                raise ValidationError(f"Expected a receipt of TableSink.write, found {receipt!r}.")
        written = tuple(one for receipt in by_part(receipts) for one in receipt["written"])
        change = Change(operation="append", add=written)
        version: Version = self.table.commit(change, transaction=self.transaction)
        return version

    def renew(self) -> None:
        """Tell the table that the conversion is alive; at least hourly."""
        self.table.renew(self.transaction)

    def discard(self) -> None:
        """Remove every part that was staged."""
        self.table.discard(self.transaction)
        if self.guarded:  # what was staged meanwhile; what is staged from now on finds no marker
            self.table.discard(self.transaction)


def _digits(part: int) -> str:
    """A part's number in at most 8 digits, which leaves room for the random ones."""
    if part >= 10**8:
        raise ValueError(f"A conversion has at most 100 million parts, found part {part}.")
    return str(part)
