"""What one transaction has written and nobody sees yet: shards, side shards, copied-in files."""

from __future__ import annotations

import errno
import itertools
import re
import secrets
import tempfile
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from seqlake.abilities import HasStrangers, NumbersFields, OfALake, Partitioned, PlacesSides, ability
from seqlake.dataset.writing import rehearsal
from seqlake.dataset.writing.copying import Aside, digest, is_large, on_this_machine, refuse_changed, slug
from seqlake.dataset.writing.ingest import Encoded
from seqlake.dataset.writing.references import may_name, sizes_seen
from seqlake.errors import ReadOnlyError
from seqlake.files.checksums import refuse_another
from seqlake.files.locations import local_path
from seqlake.files.room import room_in
from seqlake.protocols import Change, Copied, Readable, Side, Written
from seqlake.shards.parquet.layout import refuse_unknown
from seqlake.spec.rules.references import paths_in
from seqlake.versions import shard_formats

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from seqlake.dataset.writing.ingest import File
    from seqlake.protocols import Blob, ShardWriter, Table, Transaction, Version
    from seqlake.spec.schema import Schema
    from seqlake.spec.unfolded import Unfolded

_MOST_OPEN = 64  # shards that are written at once; each holds back up to a row group
_AHEAD = 2  # large files that others copy and index while one is read


class Divided:
    """The shards under way of one transaction, one for each combination of partition values.

    Args:
        schema: Of the rows.
        table: Says by which columns, and what its lake makes of their cells.
        made: Gives a `Staging` for one combination of values.
    """

    def __init__(
        self,
        schema: Schema,
        table: Partitioned,
        open_staging: Callable[[Mapping[str, object]], Staging],
        /,
    ) -> None:
        self._schema = schema
        self._by = tuple(table.partition_by)
        self._made = open_staging
        self._values = table.partition_values
        self._open: dict[tuple[object, ...], Staging] = {}
        self._claimed: set[str] = set()
        self._told: Sequence[Copied] = ()
        self._known: dict[str, Copied] = {}

    def write(self, batch: pa.RecordBatch, files: Sequence[Copied]) -> list[Written]:
        """Append rows; gives the shards that had to be finished to make room.

        Args:
            batch: Rows in logical types.
            files: Files that were copied in for rows since the last close.
        """
        if files is not self._told:
            self._told, self._known = files, {}
        self._known.update((file.path, file) for file in files[len(self._known) :])
        done: list[Written] = []
        for values, part in divided(batch, self._values(batch)):
            if values not in self._open:
                if len(self._open) >= _MOST_OPEN:
                    done += self._finished()
                self._open[values] = self._made(dict(zip(self._by, values, strict=True)))
            one = self._open[values]
            for piece in one.parts(part):
                mine = self._files_of(piece)
                self._claimed.update(file.path for file in mine)
                one.carry(mine)
                one.write(piece)
        return done

    def _files_of(self, piece: pa.RecordBatch) -> list[Copied]:
        known = self._known
        return [known[path] for path in dict.fromkeys(_named(piece, self._schema)) if path in known] if known else []

    def close(self, files: Sequence[Copied]) -> list[Written]:
        """Finish every shard; files that no row has named yet are listed with all of them."""
        left = [file for file in files if file.path not in self._claimed]
        for one in self._open.values():
            one.carry(left)
        self._claimed = set()
        return self._finished()

    def abort(self) -> None:
        """Give up the shards under way."""
        for one in self._open.values():
            one.abort_shard()
        self._open = {}

    def _finished(self) -> list[Written]:
        done = []
        for one in self._open.values():
            one.close_shard()
            done += one.written
        self._open = {}
        return done


def divided(
    batch: pa.RecordBatch, partitions: Iterable[tuple[object, ...]]
) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    """The rows of a batch by their partitions, in the order in which these come."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for row, values in enumerate(partitions):
        rows.setdefault(values, []).append(row)
    for values, mine in rows.items():
        yield values, batch if len(rows) == 1 else batch.take(pa.array(mine, pa.int64()))


def partition_of(table: Table, /) -> Sequence[str]:
    """The columns that new shards of a table are partitioned by; none for standalone tables."""
    divided = ability(table, Partitioned)
    return () if divided is None else divided.partition_by


def field_ids_of(table: Table, schema: Schema, /) -> Mapping[str, int]:
    """What the table's lake calls the columns in its files, where it finds them by number; else nothing."""
    known = ability(table, NumbersFields)
    return {} if known is None else known.field_ids(schema)


def _named(batch: pa.RecordBatch, schema: Schema) -> Iterator[str]:
    for name in batch.schema.names:
        if may_name(schema[name]):
            for cell in batch.column(name).to_pylist():
                yield from (path for path, _ in paths_in(cell))


SHARD_BYTES = 128 << 20
_HOUR = 3600.0
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class OpenDataset(Readable, Protocol):
    """What verbs that write ask of a dataset: its table, the version that it shows, and the rows of it."""

    @property
    def table(self) -> Table:
        """Where the rows are kept."""

    @property
    def location(self) -> str:
        """The path or URI it was opened by."""

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Options of its store; never printed."""

    @property
    def allow_outside(self) -> bool:
        """Whether files outside its root may be opened."""

    @property
    def unfolded(self) -> Unfolded:
        """Where its files say otherwise than the version."""

    @property
    def source(self) -> Readable:
        """The snapshot of the version."""

    @property
    def version(self) -> Version:
        """The version that it shows."""

    def refresh(self) -> Version:
        """Show the newest version, whoever made it."""

    def batches(self, columns: Sequence[str] | None = None, /) -> Iterator[pa.RecordBatch]:
        """All rows of some columns, in order."""


def open_for_changes(dataset: OpenDataset, /) -> None:
    """Let a dataset show the newest version; a plain folder is adopted first, and nothing in it moves."""
    if dataset.refresh().id == -1:
        folder = ability(dataset.table, HasStrangers)
        if rehearsal.under_way():
            if folder is not None:
                folder.would_adopt()
            return
        with room_in(dataset.location):
            dataset.table.discard(dataset.table.begin())
        dataset.refresh()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardShape:
    """How shards are written.

    Attributes:
        rows: Close a shard at so many rows; None: by bytes alone.
        nbytes: Close it once it has so many bytes.
        layout: `training` or `archive`.
        fixed_size_inner: Store fixed-size inner lists.
        format: The name of the format that they have; None: what the dataset says.
    """

    rows: int | None = None
    nbytes: int = SHARD_BYTES
    layout: str = "training"
    fixed_size_inner: bool = False
    format: str | None = None

    def __post_init__(self) -> None:
        refuse_unknown(self.layout)
        for name, value in (("rows_per_shard", self.rows), ("bytes_per_shard", self.nbytes)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, found {value}.")


class Staging:
    """The shards and files of one commit; the transaction begins with the first of them.

    Args:
        table: Where they will be committed.
        schema: Of the rows that are written, in logical types.
        shape: How shards are written.
        transaction: One that was begun elsewhere; a new one by default.
        prefix: What the numbers of this process begin with, where several stage under one transaction.
        partition: The values that all rows have in the columns a lake partitions by; by default rows are divided.
    """

    def __init__(
        self,
        table: Table,
        schema: Schema,
        /,
        *,
        shape: ShardShape,
        transaction: Transaction | None = None,
        prefix: str | None = None,
        partition: Mapping[str, object] | None = None,
    ) -> None:
        self._table = table
        self._lake = ability(table, OfALake)
        self._schema = schema
        self.shape = shape
        self._transaction = transaction
        self._prefix = prefix
        self._partition = partition
        self._divided: Divided | None = None
        self._count = itertools.count()  # `next` is atomic: frames are taken in by threads
        self._elsewhere: tempfile.TemporaryDirectory[str] | None = None
        self._renewed = time.monotonic()
        self._shard: ShardWriter | None = None
        self._rows = 0
        self._aside, self._ahead = Aside(), False
        self._under_way: deque[Generator[tuple[str, int], None, None]] = deque()
        self._files: list[Copied] = []
        self._seen: dict[str, int] = {}
        self.written: list[Written] = []
        self.sides: list[Side] = []

    @property
    def transaction(self) -> Transaction:
        """The transaction, begun now if it was not yet."""
        if self._transaction is None:
            rehearsal.stop_here()
            self.begin()
        assert self._transaction is not None
        return self._transaction

    def begin(self, parent: Version | None = None) -> None:
        """Begin the transaction now, for a change that is made on this version, or on the newest; else renew it."""
        if self._transaction is not None:
            self.renew_if_due()
            return
        if rehearsal.under_way():
            return
        with clear_errors(self._table):
            self._transaction = self._table.begin(parent)
        self._renewed = time.monotonic()

    @property
    def root(self) -> str:
        """What relative references of the rows will resolve against."""
        return self._table.root

    @property
    def begun(self) -> bool:
        """Whether there is a transaction, so something to commit or discard."""
        return self._transaction is not None

    # ---- shards

    def fills_up(self, rows: int) -> bool:
        """Whether so many rows more complete the shard at hand."""
        return self.shape.rows is not None and self._rows + rows >= self.shape.rows

    def parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Slices that go into one shard each; each must be written before the next is asked for."""
        start = 0
        while start < batch.num_rows:
            room = batch.num_rows if self.shape.rows is None else self.shape.rows - self._rows
            yield batch.slice(start, room)
            start += room

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows in logical types; shards close at their limits."""
        if self._partition is None:
            divided = ability(self._table, Partitioned) if self._divided is None else None
            if divided is not None and divided.partition_by:
                self._divided = Divided(self._schema, divided, self._for_partition)
            if self._divided is not None:
                self.written += self._divided.write(batch, self._files)
                return
            self._partition = {}
        for part in self.parts(batch):
            with clear_errors(self._table):
                self._write_part(part)
            if self.fills_up(0) or (self._shard is not None and self._shard.nbytes >= self.shape.nbytes):
                self.close_shard()

    def _for_partition(self, values: Mapping[str, object]) -> Staging:
        staging = Staging(self._table, self._schema, shape=self.shape, transaction=self.transaction, partition=values)
        staging._prefix, staging._count = self._prefix, self._count
        return staging

    def _write_part(self, part: pa.RecordBatch) -> None:
        if self._shard is None:
            named = self._lake.shard_format if self._lake else shard_formats.of_new(self._schema)
            known = self.shape.format or named
            n = self._number()
            path = self._table.place(self.transaction, self._partition or {}, n=n, format=known)
            self._shard = shard_formats.plug(known).create(
                Path(path),
                self._schema,
                layout=self.shape.layout,
                fixed_size_inner=self.shape.fixed_size_inner and not (self._lake and self._lake.plain_lists),
                ids=field_ids_of(self._table, self._schema),
            )
        self._shard.write(part)
        self._rows += part.num_rows
        copied = self._table.files(self.transaction)
        self._seen.update(sizes_seen(part, self._schema, root=self._table.root, copied=copied))

    def close_shard(self) -> None:
        """Finish the shard at hand, if there is one; files copied in since the last belong to it."""
        if self._divided is not None:
            self.written += self._divided.close(self._files)
            self._files = []
        if self._shard is None:
            return
        with clear_errors(self._table):
            shard, self._shard = self._shard, None
            # Durable at once, and on a store out of this machine: many shards must not wait on the local disk.
            seen = tuple((path, size, "") for path, size in sorted(self._seen.items()))
            written = replace(
                shard.close(), partition=dict(self._partition or {}), files=tuple(self._files), references=seen
            )
            written = self._table.stage(self.transaction, written)
        self.written.append(written)
        self._files, self._seen, self._rows = [], {}, 0
        self.renew_if_due()

    def renew_if_due(self) -> None:
        """Tell the table hourly that this transaction is alive."""
        if time.monotonic() - self._renewed >= _HOUR:
            self._table.renew(self.transaction)
            self._renewed = time.monotonic()

    def carry(self, files: Sequence[Copied]) -> None:
        """Files that rows of the shard at hand name and an earlier commit copied in."""
        self._files.extend(files)

    @property
    def has_sides(self) -> bool:
        """Whether columns can lie beside a shard that stays; in a lake they cannot."""
        return ability(self._table, PlacesSides) is not None

    def side(self, shard: str, columns: pa.Table) -> None:
        """Stage columns beside a shard that stays, rows in its order.

        Args:
            shard: Its key.
            columns: What lies beside it.
        """
        import pyarrow.parquet as pq

        table = ability(self._table, PlacesSides)
        assert table is not None  # `has_sides` was asked
        with clear_errors(self._table):
            path = Path(table.place_side(self.transaction, n=self._number()))
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(columns, path, compression="zstd", write_page_checksum=True)
            nbytes = path.stat().st_size
        self.sides.append(Side(location=str(path), shard=shard, columns=tuple(columns.column_names), nbytes=nbytes))
        self.renew_if_due()

    # ---- files

    def take_files(self) -> list[Copied]:
        """Files that were copied in for no shard yet; `carry` gives each to the shard whose rows name it."""
        files, self._files = self._files, []
        return files

    def take_in(self, column: str, sequence_id: str, file: File) -> str:
        """A row's file as a reference: copied in, or taken over if it was encoded for this row."""
        if not isinstance(file, Encoded):
            return self.copy_in(column, sequence_id, file.location)
        reference = self.copy_in(
            column, sequence_id, file.location, link=True, suffix=file.suffix, packets=file.packets
        )
        local_path(file.location).unlink(missing_ok=True)
        return reference

    def copy_in(
        self,
        column: str,
        sequence_id: str,
        location: str,
        *,
        link: bool = False,
        suffix: str | None = None,
        storage: Mapping[str, str] | None = None,
        packets: Mapping[int, bytes] | None = None,
        known: Copied | None = None,
        blob: Blob | None = None,
    ) -> str:
        """Copy a file into the dataset, durably, and give its reference.

        The packet index of a video is made here, once, and goes into the version with the file.

        Args:
            column: The column that will refer to it.
            sequence_id: Of the row.
            location: An absolute path or URI.
            link: Make a hard link where the file system can.
            suffix: What its name ends in; that of the file by default.
            storage: Options of the store that the file lies in.
            packets: Its packet indexes, where another table has made them.
            known: What another table says of it, with which it is compared: a new digest would hide damage for good.
            blob: Its bytes, where it lies in another file.

        Raises:
            FileNotFoundError: It is not there.
            CorruptFileError: It is not what is known of it.
            ValidationError: It changed while it was being copied.
            OSError: It cannot be read, or the copy cannot be written.
        """
        here = on_this_machine(location, storage, blob)
        copying = self._copying(
            column, sequence_id, location, here, link=link, suffix=suffix, packets=packets or {}, known=known
        )
        path, size = next(copying)
        if self._ahead and is_large(size):
            self._under_way.append(copying)
            self._finish(at_most=_AHEAD)
        else:
            deque(copying, maxlen=0)
        return path

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """For a block that copies many files in: large ones are copied and indexed while the next are read.

        All are whole when it ends. What was wrong with one may be raised by a later one, so that nothing of the block
        can be kept then.
        """
        self._ahead = True
        try:
            yield
            self._finish()
        finally:
            self._ahead = False
            while self._under_way:
                self._under_way.pop().close()

    def _copying(
        self,
        column: str,
        sequence_id: str,
        location: str,
        here: AbstractContextManager[Path],
        *,
        link: bool,
        suffix: str | None,
        packets: Mapping[int, bytes],
        known: Copied | None,
    ) -> Generator[tuple[str, int], None, None]:
        """Read a file and give its reference and its size; then, when asked for more, wait until it is whole."""
        transaction = self.transaction
        with clear_errors(self._table), here as source:
            before = source.stat()
            kind = self._schema[column].type if column in self._schema else None
            indexed = partial(dict, packets) if packets else self._aside.packets(source, kind, before.st_size)
            size, sha256 = digest(source)
            if known is not None:
                refuse_another(location, size, sha256, known)
            suffix = source.suffix if suffix is None else suffix
            suffix = suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,16}", suffix) else ""
            if self._lake and suffix.lower() in self._lake.swept:
                suffix += ".kept"  # a lake's cleanup takes such names for data files of its own
            name = f"{slug(sequence_id)}-{transaction.id}-{self._number()}{suffix}"
            path = f"{self._table.files(transaction)}/{slug(column)}/{sha256[:2]}/{name}"
            put = self._aside.put(self._table.store, path, source, size, link=link)
            try:
                yield path, size
                put()
                packets = indexed()
                refuse_changed(location, before, source.stat())
            except BaseException:
                for waited in (put, indexed):  # whoever gives up removes the copy, or its source, when this has ended
                    with suppress(Exception):
                        waited()
                with suppress(Exception):
                    self._table.store.delete([path])
                raise
        self._files.append(Copied(path=path, size=size, sha256=sha256, packets=packets))

    def _finish(self, *, at_most: int = 0) -> None:
        while len(self._under_way) > at_most:
            deque(self._under_way.popleft(), maxlen=0)

    def scratch(self) -> Path:
        """A path of this machine for a file in the making; `discard` removes what is left there."""
        with clear_errors(self._table):
            path = self._table.store.local(self._table.temporary(self.transaction, self._number()))
        if path is None:
            if self._elsewhere is None:
                self._elsewhere = tempfile.TemporaryDirectory(prefix="seqlake-", ignore_cleanup_errors=True)
            path = Path(self._elsewhere.name, f"{self._number()}.tmp")
        return path

    # ---- the end

    def commit(
        self,
        operation: str,
        /,
        *,
        remove: Sequence[str] = (),
        schema: Schema | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Version:
        """Commit everything staged as one change; on an error nothing of it is left behind."""
        try:
            self.close_shard()
        except BaseException:
            self.discard()
            raise
        change = Change(
            operation=operation,
            add=tuple(self.written),
            side=tuple(self.sides),
            remove=tuple(remove),
            schema=schema,
            renamed=dict(renamed or {}),
        )
        # From here on the table alone knows whether the commit was made, so it alone may remove anything.
        with room_in(self._table.root):
            version = self._table.commit(change, transaction=self.transaction)
        self._forget_scratch()
        return version

    def abandon(self) -> None:
        """Remove what this process staged; the transaction, which others share, goes on."""
        self.abort_shard()
        copied = [file.path for files in (self._files, *(w.files for w in self.written)) for file in files]
        paths = [*(written.location for written in self.written), *copied]
        if paths:
            self._table.store.delete(paths)
        self._files, self.written = [], []

    def discard(self) -> None:
        """Remove what was staged."""
        self.abort_shard()
        if self._transaction is not None:
            self._table.discard(self._transaction)
            self._transaction = None
        self._forget_scratch()
        self._files, self.written, self.sides = [], [], []

    def abort_shard(self) -> None:
        """Give up the shard at hand."""
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.abort()
        if self._divided is not None:
            self._divided.abort()

    def _forget_scratch(self) -> None:
        elsewhere, self._elsewhere = self._elsewhere, None
        if elsewhere is not None:
            elsewhere.cleanup()

    def _number(self) -> str:
        """A name within the transaction: a counter, and random digits where several processes count."""
        if self._prefix is not None:
            return f"{self._prefix}{secrets.token_hex(4)}"
        return _base36(next(self._count))


def _base36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits


@contextmanager
def clear_errors(table: Table) -> Iterator[None]:
    """Say where it was when a place cannot be written or is full."""
    where = table.root
    try:
        with room_in(where):
            yield
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS} and not isinstance(error, ReadOnlyError):
            raise ReadOnlyError(
                f"{where} cannot be written: {error}. What was not committed before is lost.", path=where
            ) from error
        raise
