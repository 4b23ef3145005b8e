"""A table opened for you: a selection of everything, plus the verbs that write."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from seqlake.abilities import HasTags, HasUnfolded, HasVersion, ability
from seqlake.arguments import TEXT
from seqlake.dataset.changing import changes, declaring, evolving, folding
from seqlake.dataset.changing.units import convert_units
from seqlake.dataset.reading.difference import Difference, diff
from seqlake.dataset.selection import Selection
from seqlake.dataset.validation.checking import report
from seqlake.dataset.writing.staging import SHARD_BYTES, ShardShape, open_for_changes
from seqlake.dataset.writing.waiting import SPILL_BYTES, OnFull
from seqlake.dataset.writing.writer import Writer
from seqlake.errors import ReadOnlyError
from seqlake.files.room import room_in
from seqlake.moved import OldName
from seqlake.shards.files import verified_alike
from seqlake.spec.unfolded import Unfolded
from seqlake.versions.messages import saying

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from seqlake.media import Encoding
    from seqlake.protocols import Depth, Readable, Shard, Table, Version
    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.findings import Report
    from seqlake.spec.schema import Column


class Dataset(Selection):
    """A Mixtrain dataset at a version; made by `open` and `create`.

    Every verb that writes works on the newest version, makes exactly one commit, and moves this object to the version
    it made. To stay at a version, open it: `sl.open(location, version=...)` gives an object of its own, and selections
    made before a commit keep the rows they had.

    Args:
        table: Where the rows are kept.
        snapshot: One version of them.
        location: The path or URI it was opened by.
        storage: Options of its store; never printed.
        allow_outside: Whether files outside its root may be opened.

    Example:
        ```python
        ds = sl.open("data/pick-n-place")
        ds.delete("reward < 0")
        ```
    """

    def __init__(
        self,
        table: Table,
        snapshot: Readable,
        *,
        location: str,
        storage: Mapping[str, str] | None = None,
        allow_outside: bool = False,
    ) -> None:
        super().__init__(snapshot, storage=storage, allow_outside=allow_outside)
        self.table = table
        self.location = location

    @property
    def source(self) -> Readable:
        """The snapshot that this object shows."""
        return self._excerpt.source

    @property
    def version(self) -> Version:
        """The version that this object shows."""
        snapshot = ability(self.source, HasVersion)
        assert snapshot is not None
        return snapshot.version

    def refresh(self) -> Version:
        """Show the newest version, whoever made it; selections and sequences taken before keep theirs.

        Example:
            >>> dataset.refresh().id
            1
        """
        snapshot = self.table.snapshot()
        if snapshot is not self.source:  # else what is open and known of it stays so
            before = self._excerpt
            source = verified_alike(before.source, snapshot)
            Selection.__init__(self, source, storage=before.storage, allow_outside=before.allow_outside)
        return snapshot.version

    # ---- adding rows
    def writer(
        self,
        *,
        commit_every: int | None = None,
        rows_per_shard: int | None = None,
        bytes_per_shard: int = SHARD_BYTES,
        layout: str = "training",
        fixed_size_inner: bool = False,
        encoding: Encoding | Mapping[str, Encoding] | None = None,
        on_full: OnFull = "error",
        spill_bytes: int = SPILL_BYTES,
        message: str | None = None,
    ) -> Writer:
        """A writer that appends sequences; nothing is visible before it commits.

        Args:
            commit_every: Commit after so many added sequences; by default once, at the end.
            rows_per_shard: Close a shard at so many rows.
            bytes_per_shard: Close it once it has so many bytes.
            layout: `training`, for random windows without decoding, or `archive`, for small files.
            fixed_size_inner: Store fixed-size inner lists, as the specification's notes advise.
            encoding: How frames given as arrays become videos, all or by column; by default by the training profile.
            on_full: What `Recording.add` does when frames come faster than they are encoded and no more may wait:
                `error` raises, `wait` waits, `drop` leaves out the frame and its time, and counts it.
            spill_bytes: Bytes of frames of one take that may wait on this machine's disk; 0 for none.
            message: What the commit is for; `versions()` shows it.

        Example:
            ```python
            with ds.writer() as writer:
                writer.add("ep_001", task="pick", action=actions)
            ```
        """
        shape = ShardShape(
            rows=rows_per_shard, nbytes=bytes_per_shard, layout=layout, fixed_size_inner=fixed_size_inner
        )
        return Writer(
            self,
            shape=shape,
            commit_every=commit_every,
            encoding=encoding,
            on_full=on_full,
            spill_bytes=spill_bytes,
            message=message,
        )

    def append(
        self,
        data: Any,
        /,
        *,
        commit_every: int | None = None,
        rows_per_shard: int | None = None,
        bytes_per_shard: int = SHARD_BYTES,
        layout: str = "training",
        fixed_size_inner: bool = False,
        encoding: Encoding | Mapping[str, Encoding] | None = None,
        message: str | None = None,
    ) -> Version:
        """Add rows in one commit.

        Args:
            data: A list of dicts, or Arrow data of any maker: a table, a Polars or pandas frame, a reader, another
                selection, whose files are copied in. Columns are matched by name; missing ones are null.
            commit_every: As for `writer`, and the same for the others.
            rows_per_shard: Close a shard at so many rows.
            bytes_per_shard: Close it once it has so many bytes.
            layout: `training` or `archive`.
            fixed_size_inner: Store fixed-size inner lists.
            encoding: How frames given as arrays become videos.
            message: What the commit is for; `versions()` shows it.

        Returns:
            The new version.

        Raises:
            SchemaMismatchError: Columns do not fit; every one is named.
            ValidationError: A value does not fit; `DuplicateSequenceError` for an id that is there already.

        Example:
            ```python
            ds.append(pl.read_parquet("more.parquet"))
            ```
        """
        with self.writer(
            commit_every=commit_every,
            rows_per_shard=rows_per_shard,
            bytes_per_shard=bytes_per_shard,
            layout=layout,
            fixed_size_inner=fixed_size_inner,
            encoding=encoding,
            message=message,
        ) as writer:
            writer.add_batch(data)
            return writer.commit()

    def upsert(
        self,
        data: Any,
        /,
        *,
        encoding: Encoding | Mapping[str, Encoding] | None = None,
        message: str | None = None,
    ) -> Version:
        """Change the rows whose ids are there and add the others, in one commit.

        Only the columns given are changed. Of a row that was there the other cells stay; of a new one they are null.

        Args:
            data: As for `append`; held in memory. Frames are encoded as for `Writer.add`.
            encoding: How frames are encoded.
            message: What the commit is for; `versions()` shows it.

        Raises:
            SchemaMismatchError, ValidationError: Columns or values do not fit, or an id is given twice.
            CommitConflictError: A rival rewrote one of the shards meanwhile.

        Example:
            ```python
            ds.upsert([{"sequence_id": "ep_001", "action": actions}, {"sequence_id": "ep_900", "task": "pour"}])
            ```
        """
        with saying(message):
            return changes.upsert(self, data, encoding=encoding)

    # ---- changing rows
    def update(self, data: Any, /, *, message: str | None = None) -> Version:
        """Change scalar cells by id, in one commit.

        Columns that were added after a shard was written lie beside it, and their cells are changed without
        rewriting a temporal byte; a column that the shard holds itself is changed by writing that shard anew.

        Args:
            data: A list of dicts or Arrow data, with `sequence_id` and the columns to change.
            message: What the commit is for; `versions()` shows it.

        Raises:
            SequenceNotFoundError: An id is not in the dataset; nothing is changed.
            SchemaMismatchError: Unknown, temporal or frames columns.
            CommitConflictError: A rival rewrote one of the shards meanwhile.

        Example:
            ```python
            ds.update([{"sequence_id": "ep_003", "reward": 1.0}])
            ```
        """
        with saying(message):
            return changes.update(self, data)

    def delete(
        self, where: str | None = None, /, *, ids: Iterable[str] | None = None, message: str | None = None
    ) -> Version:
        """Remove rows, in one commit; older versions keep them until `vacuum`.

        Args:
            where: One boolean SQL expression, as in `Selection.where`.
            ids: These sequences instead.
            message: What the commit is for; `versions()` shows it.

        Returns:
            The new version; the current one if no row matched.

        Raises:
            QueryError: The condition cannot be used.
            SequenceNotFoundError: One of `ids` is not in the dataset.
            CommitConflictError: A rival rewrote one of the shards meanwhile.

        Example:
            ```python
            ds.delete("reward < 1", message="failed takes")
            ```
        """
        with saying(message):
            return changes.delete(self, where, ids=ids)

    # ---- changing columns
    def add_column(
        self,
        name: str,
        kind: pa.DataType | pa.Field | ColumnType | Column,
        /,
        *,
        values: Mapping[str, Any] | None = None,
        sql: str | None = None,
        message: str | None = None,
    ) -> Version:
        """Add a column: null, by id, or computed; it lies beside the shards, which stay as they are.

        Shards that hold a dropped or renamed column under this name are written anew.

        Args:
            name: Its name.
            kind: An Arrow type or a column type.
            values: `{sequence_id: value}`; sequences without one read null.
            sql: A row expression over the other columns.
            message: What the commit is for; `versions()` shows it.

        Raises:
            SchemaMismatchError: A column of that name is there, its type breaks a rule of the format, or the values are
                of another type.
            SequenceNotFoundError: A value for an id that is not there.

        Example:
            ```python
            ds.add_column("steps", pa.int64(), sql="len(action)")
            ```
        """
        with saying(message):
            return evolving.add_column(self, name, kind, values=values, sql=sql)

    def rename_column(self, old: str, new: str, /, *, rewrite: bool = False, message: str | None = None) -> Version:
        """Rename a column. Readers that glob `data/` see the old name in old shards until `fold`, or `rewrite`.

        `mixtrain.json` says so until then. Old shards that hold `new` for a column that is gone are written anew.
        `rewrite` writes every shard anew in the same commit; a Delta table cannot do it otherwise.

        `message` says what the commit is for; `versions()` shows it.

        Raises:
            SchemaMismatchError: No such column, the id, or a name that is taken.

        Example:
            ```python
            ds.rename_column("reward", "score")
            ```
        """
        with saying(message):
            return evolving.rename_column(self, old, new, rewrite=rewrite)

    def drop_column(self, name: str, /, *, rewrite: bool = False, message: str | None = None) -> Version:
        """Drop a column. Its bytes stay in old shards until `fold`, or `rewrite`; a later one of that name is null.

        `message` says what the commit is for; `versions()` shows it.

        Raises:
            SchemaMismatchError: No such column, or the id.

        Example:
            ```python
            ds.drop_column("note")
            ```
        """
        with saying(message):
            return evolving.drop_column(self, name, rewrite=rewrite)

    def widen_column(
        self, name: str, kind: pa.DataType, /, *, rewrite: bool = False, message: str | None = None
    ) -> Version:
        """Give a column a type that holds every value of its old one; `rewrite` as for `rename_column`.

        For a signal or vector the type of its numbers is enough.

        `message` says what the commit is for; `versions()` shows it.

        Raises:
            SchemaMismatchError: No such column, or a type that would lose values.

        Example:
            ```python
            ds.widen_column("action", pa.float64())
            ```
        """
        with saying(message):
            return evolving.widen_column(self, name, kind, rewrite=rewrite)

    def convert_units(
        self,
        name: str,
        units: str | Sequence[str],
        /,
        *,
        factor: float | None = None,
        offset: float = 0.0,
        message: str | None = None,
    ) -> Version:
        """Bring a column's numbers into another unit: values and the type's `units` change in one commit.

        Every shard is written anew; numbers are computed in double precision and kept in their type.

        Args:
            name: A column of floating-point numbers, signals or scalars, whose type says its `units`.
            units: The new unit, as in `deg`; or one for each dimension.
            factor: What values are multiplied by, for units that seqlake does not know.
            offset: What is added then.
            message: What the commit is for; `versions()` shows it.

        Raises:
            SchemaMismatchError: No such column, no floating-point numbers, or units that do not go together.

        Example:
            ```python
            ds.convert_units("action", "deg")
            ds.convert_units("pressure", "counts", factor=4096 / 250, offset=-12)
            ```
        """
        with saying(message):
            return convert_units(self, name, units, factor=factor, offset=offset)

    # ---- what columns mean
    def set_type(
        self, name: str, kind: ColumnType | None, /, *, depth: Depth = "rows", message: str | None = None
    ) -> Version:
        """Say what a column means; its cells stay as they are, and so does every file.

        Args:
            name: The column.
            kind: Its type from now on, with all its fields; None for a plain column.
            depth: How thoroughly the cells are compared with it first: `metadata` (the Arrow type), `rows`, `files` or
                `decode`, as `validate` does.
            message: What the commit is for; `versions()` shows it.

        Raises:
            SchemaMismatchError: No such column, or one of an Arrow type that cannot mean this.
            ValidationError: Cells, or files, are not what it says; nothing is changed.

        Example:
            ```python
            ds.set_type("cam", sl.Video(fps=30), depth="files")
            ```
        """
        TEXT.check("name", name)
        return self.declare(types={name: kind}, depth=depth, message=message)

    def set_metadata(self, values: Mapping[str, Any], /, *, message: str | None = None) -> Version:
        """Set keys of `mixtrain.json` (or of a lake's property) that the format does not define.

        Args:
            values: Key -> any JSON value; None removes the key, others stay.
            message: What the commit is for; `versions()` shows it.

        Raises:
            InvalidMetadataError: A key that seqlake or the format writes, or a value that is not JSON.

        Example:
            ```python
            ds.set_metadata({"license": "CC-BY-4.0", "draft": None})
            ds.schema.metadata.extra["license"]
            ```
        """
        return self.declare(metadata=values, message=message)

    def declare(
        self,
        *,
        types: Mapping[str, ColumnType | Mapping[str, Any] | None] | None = None,
        metadata: Mapping[str, Any] | None = None,
        depth: Depth = "rows",
        dry_run: bool = False,
        message: str | None = None,
    ) -> Version:
        """Set types of several columns, and metadata, in one commit; as `set_type` and `set_metadata` do.

        Args:
            types: Column -> its type, or that as JSON; None for a plain column.
            metadata: Key -> value; None removes the key.
            depth: How thoroughly the cells are compared with their new types.
            dry_run: Only compare.
            message: What the commit is for; `versions()` shows it.

        Returns:
            The new version; the current one where nothing changes.

        Example:
            ```python
            ds.declare(types={"cam": sl.Video(fps=30), "wrist": sl.Video(fps=30)}, metadata={"license": "MIT"})
            ```
        """
        with saying(message):
            return declaring.declare(self, types=types, metadata=metadata, depth=depth, dry_run=dry_run)

    # ---- versions and upkeep
    @property
    def unfolded(self) -> Unfolded:
        """What the data files hold otherwise than this version: older names, dropped columns, labels beside them.

        Empty in a lake, whose own log says it to every reader.
        """
        known = ability(self.source, HasUnfolded)
        return Unfolded() if known is None else known.unfolded

    def lagging(self) -> Sequence[Shard]:
        """The shards that `fold` would write anew: the log knows some, the footers of all others are opened.

        Example:
            >>> dataset.lagging()
            []
        """
        return folding.due(self)

    def fold(self, *, message: str | None = None) -> Version:
        """Write into the shards what lies beside them or only the log knows: labels, renames, drops; in one commit.

        Then `data/*.parquet` and `mixtrain.json` alone say all that this version says. Only shards that say otherwise
        are written anew, each as one in its layout; they come last in the order of rows. In a lake, those with deleted
        rows.

        Args:
            message: What the commit is for; `versions()` shows it.

        Returns:
            The new version; the current one where nothing is due.

        Raises:
            CommitConflictError: A rival changed one of these shards, or the columns, meanwhile.

        Example:
            ```python
            if ds.unfolded:
                ds.fold()
            ```
        """
        with saying(message):
            return folding.fold(self)

    def versions(self) -> Sequence[Version]:
        """Every version that can still be opened, oldest first.

        Example:
            >>> [version.operation for version in dataset.versions()]
            ['create', 'append']
        """
        return self.table.versions()

    def tags(self) -> Mapping[str, int | str]:
        """The names that versions have, each with the id of its version.

        Example:
            >>> dataset.tags()
            {}
        """
        known = ability(self.table, HasTags)
        return {} if known is None else known.tags()

    def tag(
        self,
        name: str,
        /,
        version: Version | int | str | datetime | None = None,
        *,
        move: bool = False,
        message: str | None = None,
    ) -> Version:
        """Give a version a name: `sl.open(location, version=name)` opens it, and `vacuum` keeps it while it has one.

        This object goes on showing the version it showed. In a standalone dataset a tag is a commit.

        Args:
            name: 1 to 64 letters, digits, dots, dashes and underscores; no number.
            version: A `Version`, its id, another name of it, or a time; None for the one that this object shows.
            move: The name may be another version's, and is taken from it.
            message: What the commit is for; `versions()` shows it. In a lake a tag is no commit, and has none.

        Returns:
            The version that has the name now.

        Raises:
            TagExistsError: Another version has the name.
            VersionNotFoundError: That version expired, or never was.

        Example:
            ```python
            ds.tag("v1")
            sl.open(ds.location, version="v1")
            ```
        """
        named = self.version if version is None else self.table.snapshot(version).version
        with room_in(self.location), saying(message):
            self._tagged.tag(name, named, move=move)
        return named

    def untag(self, name: str, /, *, message: str | None = None) -> None:
        """Take a name away; its version expires as others do. `message` as in `tag`.

        Raises:
            VersionNotFoundError: No version has the name.
            TypeError: It is no text.

        Example:
            ```python
            ds.untag("v1")
            ```
        """
        if not isinstance(name, str):
            raise TypeError(f"A tag is a text, found {type(name).__name__}.")
        with room_in(self.location), saying(message):
            self._tagged.untag(name)

    @property
    def _tagged(self) -> HasTags:
        known = ability(self.table, HasTags)
        if known is None:
            raise ReadOnlyError(
                f"{self.location}: a table of kind {self.table.kind} keeps no names of versions.", path=self.location
            )
        return known

    def diff(self, version: Version | int | str, /) -> Difference:
        """What this version has that another one has not, and the other way round; see `sl.diff`.

        Raises:
            VersionNotFoundError: It expired, or never was there.

        Example:
            ```python
            print(ds.diff(ds.versions()[-2]))
            ```
        """
        before = Dataset(self.table, self.table.snapshot(version), location=self.location, storage=self.storage)
        return diff(before, self)

    def rollback(self, version: Version | int | str, /, *, message: str | None = None) -> Version:
        """Commit a new version with the rows, schema and metadata of an old one.

        `message` says what the commit is for; `versions()` shows it.

        Raises:
            VersionNotFoundError: It expired, or never was there.

        Example:
            ```python
            ds.rollback(ds.versions()[-2])
            ```
        """
        with room_in(self.location), saying(message):
            restored = self.table.rollback(version)
        self.refresh()
        return restored

    def adopt(self, *, message: str | None = None) -> Version:
        """Take in what others put into `data/` and a `mixtrain.json` edited by hand, after checking both.

        Of a plain folder whose Parquet files lie directly in its root, they move into `data/`.

        `message` says what the commit is for; `versions()` shows it.

        Raises:
            ReadOnlyError: Parquet files lie in folders; the error says what to do.
            ValidationError: What is there breaks a rule; nothing is taken in.

        Example:
            ```python
            ds.adopt()                                   # after `seqlake info` named files of others
            ```
        """
        with room_in(self.location), saying(message):
            adopted = self.table.adopt()
        self.refresh()
        return adopted

    def vacuum(self, *, older_than: timedelta = timedelta(days=7), dry_run: bool = False) -> Sequence[str]:
        """Remove what seqlake wrote and no version within `older_than` needs: old shards, dead writers' leftovers.

        Args:
            older_than: Every version that was the newest within this time stays readable.
            dry_run: Only say what would be removed.

        Returns:
            The paths removed.

        Example:
            ```python
            ds.vacuum(older_than=timedelta(days=30), dry_run=True)
            ```
        """
        if not isinstance(older_than, timedelta):
            raise TypeError(f"older_than is a timedelta, as in timedelta(days=7), found {older_than!r}.")
        with room_in(self.location):
            removed = self.table.vacuum(older_than=older_than, dry_run=dry_run)
        if not dry_run:
            self.refresh()
        return removed

    collect: ClassVar[OldName] = OldName("vacuum")  # in Polars and Spark `collect` gives rows
    open_for_changes: ClassVar[OldName] = OldName("adopt", lambda ds: partial(open_for_changes, ds))

    def validate(self, *, depth: Depth = "files") -> Report:
        """Check this version against the format and report every finding as data.

        Args:
            depth: `metadata`, `rows`, `files` or `decode`; each includes the ones before it.

        Example:
            ```python
            ds.validate(depth="rows").raise_for_errors()
            ```
        """
        return report(self, depth=depth)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild = partial(Dataset, location=self.location, storage=self.storage, allow_outside=self.allow_outside)
        return (rebuild, (self.table, self.source))
