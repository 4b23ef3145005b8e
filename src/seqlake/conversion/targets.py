"""Where a conversion writes: a new table of ours, or another format; seen only when it is whole."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from seqlake import plugins
from seqlake.abilities import Creates, Drops, Removable, TakesFiles, ability
from seqlake.dataset.opening import refuse_occupied
from seqlake.dataset.writing.pictures import Pictures
from seqlake.errors import DatasetExistsError, DatasetNotFoundError, SchemaMismatchError, SeqlakeError
from seqlake.files.appearing import is_between
from seqlake.files.local import remove_empty_folders
from seqlake.files.locations import is_local, local_path
from seqlake.files.stores import list_without_links, open_store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from seqlake.abilities import KeepsFiles, OpensFiles
    from seqlake.dataset.dataset import Dataset
    from seqlake.dataset.writing.carrying import FilesMode
    from seqlake.dataset.writing.staging import ShardShape
    from seqlake.protocols import Sink
    from seqlake.spec.schema import Schema

_OF_OURS = ("_seqlake/", "mixtrain.json")


class Target(Protocol):
    """A place to write to."""

    def check(self) -> None:
        """Raise `DatasetExistsError` unless the place is new or empty."""

    def is_gone(self) -> bool:
        """Whether nothing is there of what an earlier run wrote."""

    def begin(self, state: Any, /) -> tuple[Sink, Any]:
        """A sink, and what to keep so that a later run goes on with the same one (`state` then)."""

    def undo(self, state: Any, /) -> None:
        """Remove what `begin` made, which gave this state; nothing of the conversion was shown."""

    def result(self) -> Dataset | None:
        """What the user gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget:
    """A new Mixtrain dataset, standalone or in a lake.

    Attributes:
        location: Its place.
        schema: Its columns.
        storage: Options of its store.
        source_storage: Options of the store that the source's files are copied from.
        known: What the source keeps of copied-in files.
        inside: Opens files of the source that lie in others.
        shape: How shards are written.
        files: What happens to relative file references.
        pictures: Columns of images that the source has in another form.
        split: Columns of videos that the source has as parts of shared files.
    """

    location: str
    schema: Schema
    storage: Mapping[str, str] | None = field(repr=False)
    source_storage: Mapping[str, str] | None = field(repr=False)
    shape: ShardShape
    files: FilesMode
    known: KeepsFiles | None = field(default=None, repr=False)
    inside: OpensFiles | None = field(default=None, repr=False)
    pictures: Pictures = field(default_factory=Pictures)
    split: Sequence[str] = ()

    def check(self) -> None:
        """See `Target`; a dataset of the same columns without rows, as an interrupted run leaves, counts as empty."""
        if self.schema.id is None:
            raise SchemaMismatchError(
                "A Mixtrain dataset needs the column 'sequence_id', which this source lacks.",
                hint="Select it too. For samples: sequence_id=COLUMN and steps=COLUMN, or sequence_id=True.",
            )
        if not self._is_there():
            refuse_occupied(self.location, storage=self.storage)
        elif rows := self._rows():
            raise DatasetExistsError(
                f"A dataset of {rows} sequences is at {self.location}.",
                path=self.location,
                hint="Convert into a new or empty place, then join the two with seqlake merge.",
            )

    def is_gone(self) -> bool:
        """See `Target`: there is no dataset."""
        return not self._is_there()

    def is_empty(self) -> bool:
        """Whether a dataset without rows is there, as a run that was killed leaves it."""
        return self._is_there() and not self._rows()

    def begin(self, state: Any, /) -> tuple[Sink, Any]:
        """See `Target`; the state is the table's transaction, and whether the table was made for it."""
        from seqlake.dataset.opening import create, nothing_left
        from seqlake.dataset.opening import open as open_dataset

        if state is not None:
            return self._sink(open_dataset(self.location, storage=self.storage), state), state
        new = not self._is_there()
        with nothing_left(self.location, storage=self.storage) if new else nullcontext():
            dataset = create(self.location, self.schema, storage=self.storage, exist_ok=True)
            state = {"transaction": dataset.table.begin(), "made": new}
            return self._sink(dataset, state), state

    def _sink(self, dataset: Dataset, state: Mapping[str, Any]) -> Sink:
        from seqlake.dataset.writing.sink import TableSink

        sink = TableSink(
            table=dataset.table,
            schema=self.schema,
            transaction=state["transaction"],
            shape=self.shape,
            files=self.files,
            storage=self.source_storage,
            known=self.known,
            inside=self.inside,
            pictures=self.pictures,
            split=self.split,
        )
        return cast("Sink", sink)

    def undo(self, state: Any, /) -> None:
        """See `Target`; a dataset that was there before, or has rows by now, is left alone."""
        if not state["made"] or self._rows():
            return
        whole = ability(self.result().table, Removable)
        if whole is not None:  # its address is no folder
            whole.drop()
            return
        store = open_store(self.location, storage=self.storage)
        paths = [path for path, _ in list_without_links(store) if path.startswith(_OF_OURS)]
        store.delete(paths)
        if is_local(self.location):
            remove_empty_folders(local_path(self.location))

    def _is_there(self) -> bool:
        try:
            self.result()
        except DatasetNotFoundError:
            return False
        return True

    def _rows(self) -> int:
        return len(self.result())

    def result(self) -> Dataset:
        """See `Target`: the dataset."""
        from seqlake.dataset.opening import open as open_dataset

        return open_dataset(self.location, storage=self.storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatTarget:
    """Another format, by the name of its plug."""

    name: str
    location: str
    schema: Schema
    storage: Mapping[str, str] | None = field(repr=False)
    options: Mapping[str, Any]
    source_storage: Mapping[str, str] | None = field(default=None, repr=False)

    def check(self) -> None:
        """See `Target.check`; the plug says first whether it writes."""
        self._create()
        refuse_occupied(self.location, storage=self.storage)

    def is_gone(self) -> bool:
        """See `Target`: the place is new or empty, and no commit was interrupted while it was."""
        if is_between(self.location):
            return False
        try:
            refuse_occupied(self.location, storage=self.storage)
        except DatasetExistsError:
            return False
        return True

    def begin(self, _state: Any, /) -> tuple[Sink, Any]:
        """See `Target`; a sink of a format is the same for the same location and options."""
        given = {} if self.storage is None else {"storage": self.storage}
        if self.source_storage is not None and ability(plugins.load("formats", self.name), TakesFiles) is not None:
            given["source_storage"] = self.source_storage
        return self._create()(self.location, self.schema, **given, **self.options), None

    def undo(self, _state: Any, /) -> None:
        """See `Target`; parts that were written are the sink's to discard."""

    def result(self) -> None:
        """See `Target`: nothing to open."""

    def _create(self) -> Any:
        written = ability(plugins.load("formats", self.name), Creates)
        if written is None:
            raise SeqlakeError(f"The format {self.name!r} can be read but not written.", hint="Leave `to` out.")
        return written.create


def dropped_by(name: str | None, schema: Schema, /) -> Mapping[str, str]:
    """Columns that a format cannot hold, with the reason; ours hold all."""
    picky = None if name is None else ability(plugins.load("formats", name), Drops)
    return {} if picky is None else picky.dropped(schema)


def taken_by(name: str, schema: Schema, /) -> Collection[str]:
    """Columns whose files a format takes along."""
    taking = ability(plugins.load("formats", name), TakesFiles)
    return () if taking is None else taking.takes_files(schema)


def writing_options(name: str, /) -> Collection[str]:
    """Options that the writer of a format takes: they are its own, whatever else is called so."""
    written = ability(plugins.load("formats", name), Creates)
    return () if written is None else plugins.options_of(written.create)
