"""Appending sequences: checked one by one, streamed into shards, made visible by one commit."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self

from seqlake.dataset.writing import conforming
from seqlake.dataset.writing.carrying import Carrier
from seqlake.dataset.writing.encoding import Encodings, encoded, holds_frames, takes_frames
from seqlake.dataset.writing.ingest import File, KnownIds, RowBuffer, Widths, is_rows, prepare, rows, with_lengths
from seqlake.dataset.writing.recording import Recording
from seqlake.dataset.writing.staging import ShardShape, Staging
from seqlake.dataset.writing.waiting import SPILL_BYTES, OnFull, checked_on_full
from seqlake.errors import SeqlakeError
from seqlake.versions.messages import check, saying

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from seqlake.dataset.writing.staging import OpenDataset
    from seqlake.media import Encoding
    from seqlake.protocols import Version

_PLAIN = -1  # the version of a folder that becomes a table when its first transaction begins


class Writer:
    """Adds sequences to a dataset; made by `Dataset.writer`.

    Used in a `with` block it commits at the end; an exception discards what was not committed, and nothing of it is
    left behind. Memory stays bounded by the row group and the largest cell, however much is written.

    Example:
        ```python
        with ds.writer() as writer:
            writer.add("ep_001", task="pick", action=actions, video_cam_high=sl.File("cam.mp4"))
        ```
    """

    def __init__(
        self,
        dataset: OpenDataset,
        *,
        shape: ShardShape,
        commit_every: int | None = None,
        encoding: Encoding | Mapping[str, Encoding] | None = None,
        on_full: OnFull = "error",
        spill_bytes: int = SPILL_BYTES,
        message: str | None = None,
    ) -> None:
        self._uncommitted = 0
        if commit_every is not None and commit_every < 1:
            raise ValueError(f"commit_every is a number of sequences, at least 1; found {commit_every}.")
        self._dataset = dataset
        version = dataset.refresh()
        self._shape = shape
        self._commit_every = commit_every
        check(message)
        self._message = message
        self._schema = dataset.schema
        self._encoding = Encodings.given(encoding, self._schema)
        self._on_full, self._spill_bytes = checked_on_full(on_full, spill_bytes)
        self._parent = version  # whose schema the rows are checked against
        self._pictures = {name: column for name in self._schema if takes_frames(column := self._schema[name])}
        self._ids = KnownIds()
        self._widths = Widths(self._schema, dataset.source)
        self._buffer = RowBuffer(self._schema)
        self._staging: Staging | None = None
        self._broken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._broken:
            self.commit()
        else:
            self.discard()

    def __del__(self) -> None:
        if self._uncommitted:
            warnings.warn(
                f"A writer to {self._dataset.location} is gone before its commit: {self._uncommitted} sequences that "
                "were added are not in the dataset. Write `with ds.writer() as writer:`, or call commit().",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"<Writer to {self._dataset.location}: {self._uncommitted} sequences not yet committed>"

    def add(self, sequence_id: str, /, **columns: object) -> None:
        """Add one sequence.

        Args:
            sequence_id: Unique in the dataset, not empty.
            **columns: Cells by column. A trajectory takes [T, D] arrays: numpy, tensors, nested lists; a file column a
                `File`, which is copied in, or a str, which is a reference. A video or images column also takes frames:
                uint8 [T, H, W, 3] RGB, or an iterable of [H, W, 3], which are encoded. What is not given is null;
                `length` is filled with the number of steps.

        Raises:
            SchemaMismatchError: Unknown columns, wrong shapes or kinds of values. The sequence is not added; what was
                added before is still there.
            ValidationError: A value does not fit, a cell is above 1 GiB; `DuplicateSequenceError` for a known id.
            ReadOnlyError: The dataset cannot be written.

        Example:
            ```python
            writer.add("ep_001", task="pick", action=np.zeros((80, 7)), cam=sl.File("ep_001.mp4"))
            ```
        """
        self.add_row(sequence_id, columns)

    def add_row(self, sequence_id: object, columns: dict[str, object], /) -> None:
        """`add` for columns whose names are no Python names.

        Example:
            ```python
            writer.add_row("ep_001", {"obs.state": np.zeros((80, 14))})
            ```
        """
        self._check_usable()
        key = self._ids.check(sequence_id)
        pictures = self._pictures
        if pictures and any(name in pictures and holds_frames(pictures[name], v) for name, v in columns.items()):
            self._begin()
            with encoded(self._schema, key, columns, encoding=self._encoding, scratch=self._staged.scratch) as cells:
                row = prepare(self._schema, key, cells, copy=self._copy_in)
        else:
            row = prepare(self._schema, key, columns, copy=self._copy_in)
            self._begin()
        self._widths.check(row, f"Sequence {key!r}")
        full = self._buffer.add(row)
        self._ids.add(key)
        self._uncommitted += 1
        if full or self._staged.fills_up(self._buffer.rows):
            self._flush()
        if self._commit_every is not None and self._uncommitted >= self._commit_every:
            self.commit()

    def add_batch(self, data: Any, /) -> None:
        """Add rows from Arrow data of any maker, or an iterable of dicts; columns are matched by name.

        Args:
            data: A table, batch, reader, dataset or data frame (anything with `__arrow_c_stream__`), or dicts. Rows of
                a dataset bring the files that they name; in other data a relative reference means this dataset's root.

        Raises:
            SchemaMismatchError: The columns do not fit; every one that does not is named.
            ValidationError: A value does not fit; rows before it stay added.

        Example:
            ```python
            writer.add_batch(pl.read_parquet("rows.parquet"))
            ```
        """
        self._check_usable()
        if is_rows(data):
            for key, values in rows(data, self._schema):
                self.add_row(key, values)
            return
        carrier: Carrier | None = None
        for batch in conforming.batches(data, self._schema):
            self._widths.check(dict(zip(batch.schema.names, batch.columns, strict=True)), "The data")
            self._ids.add_all(batch.column(self._schema.id))
            self._begin()
            self._flush()
            if carrier is None or carrier.staging is not self._staged:
                carrier = Carrier.of(data, self._schema, self._staged)
            self._write(with_lengths(batch, self._schema), carrier)
            self._uncommitted += batch.num_rows
            if self._commit_every is not None and self._uncommitted >= self._commit_every:
                self.commit()

    def record(self, sequence_id: str, /, **columns: object) -> Recording:
        """A sequence recorded step by step; committed when its `with` block ends, in a transaction of its own.

        Rows that were added and not committed stay so. Frames are encoded in threads while the take goes on.

        Args:
            sequence_id: Unique in the dataset, not empty.
            **columns: Cells that hold for the whole take, as for `add`.

        Raises:
            SchemaMismatchError: Columns that do not fit.
            DuplicateSequenceError: The id is known already; `ValidationError` for a value that does not fit.

        Example:
            ```python
            with writer.record("ep_002", task="pick") as take:
                for action, frame in robot:
                    take.add(action=action, video_cam_high=frame)
            ```
        """
        self._check_usable()
        return Recording(
            self._dataset,
            self._ids,
            self._widths,
            sequence_id,
            columns,
            shape=self._shape,
            encoding=self._encoding,
            on_full=self._on_full,
            spill_bytes=self._spill_bytes,
            message=self._message,
        )

    def commit(self) -> Version:
        """Make everything added so far durable and visible, and go on.

        Returns:
            The new version; the current one if nothing was added.

        Raises:
            DuplicateSequenceError: An id is in the dataset already; nothing of this commit is.
            CommitConflictError: A rival changed what this commit needs.

        Example:
            ```python
            version = writer.commit()                    # what was added is durable
            ```
        """
        self._check_usable()
        if self._uncommitted == 0:
            self.discard()  # a row that was refused may have begun a transaction
            return self._dataset.version
        try:
            self._flush()
            with saying(self._message):
                version = self._staged.commit("append")
        except BaseException:
            self._give_up()
            raise
        self._staging = None
        self._uncommitted = 0
        self._parent = self._dataset.refresh()
        return version

    def discard(self) -> None:
        """Drop everything that was not committed; nothing of it is left behind.

        Example:
            ```python
            writer.discard()                             # as if nothing had been added since the last commit
            ```
        """
        self._buffer = RowBuffer(self._schema)
        self._uncommitted = 0
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.discard()

    def _begin(self) -> None:
        # A transaction begins with the first row after a commit: an idle writer holds nothing up.
        try:
            self._staged.begin(None if self._parent.id == _PLAIN else self._parent)
        except BaseException:
            self._give_up()
            raise

    @property
    def _staged(self) -> Staging:
        if self._staging is None:
            self._staging = Staging(self._dataset.table, self._schema, shape=self._shape)
        return self._staging

    def _copy_in(self, column: str, sequence_id: str, file: File) -> str:
        try:
            return self._staged.take_in(column, sequence_id, file)
        except OSError:
            self._give_up()
            raise

    def _flush(self) -> None:
        if self._buffer.rows:
            self._write(self._buffer.flush())

    def _write(self, batch: Any, carrier: Carrier | None = None) -> None:
        try:
            if carrier is None:
                self._staged.write(batch)
            else:  # a file goes with the shard whose rows name it
                for rows in self._staged.parts(batch):
                    self._staged.write(carrier.carry(rows))
        except BaseException:
            # A shard that failed half way cannot be continued.
            self._give_up()
            raise

    def _give_up(self) -> None:
        self._broken = True
        self.discard()

    def _check_usable(self) -> None:
        if self._broken:
            raise SeqlakeError(
                "This writer failed and discarded what was not committed.", hint="Open a new one with ds.writer()."
            )
