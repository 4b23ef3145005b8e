"""What a plug may offer besides its protocol: abilities, each a protocol of a few methods.

They are asked for by `ability(thing, HasIds)` and in no other way, so that what wraps a thing can answer for it.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from seqlake.protocols import ShardReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray
    from pyarrow.dataset import Dataset as ArrowDataset

    from seqlake.protocols import (
        Blob,
        Copied,
        Depth,
        Ints,
        Mapped,
        Readable,
        Shard,
        ShardWriter,
        Sink,
        Table,
        Transaction,
        Version,
    )
    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.findings import Finding
    from seqlake.spec.schema import Schema
    from seqlake.spec.unfolded import Unfolded

    MapsTasks = Callable[[Callable[[Any], Any], Sequence[Any]], Sequence[Any]]

Kind = TypeVar("Kind")
Need = Literal["needed", "staged", "orphan", "stranger"]


@runtime_checkable
class Wrapper(Protocol):
    """Shows something else, and so has an ability only where that has it."""

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """Itself, what it wraps, or None."""


def ability(thing: object, kind: type[Kind], /) -> Kind | None:
    """The thing as one that has an optional ability; None where it has not.

    Args:
        thing: A plug, or something made by one.
        kind: A protocol of this module.

    Example:
        ```python
        known = ability(ds, HasIds)
        rows = known.find_ids(["ep_001"]) if known else ...
        ```
    """
    if isinstance(thing, Wrapper) and not isinstance(thing, ModuleType):  # a module may have imported this function
        return thing.ability(kind)
    return thing if isinstance(thing, kind) else None


# ---- files
@runtime_checkable
class ReadsWhole(Protocol):
    """Small files come whole, without a look before."""

    def read(self, path: str, /) -> bytes:
        """All of a file; FileNotFoundError. ShardChangedError where it was replaced meanwhile."""


@runtime_checkable
class WholeFiles(ReadsWhole, Protocol):
    """They come so in one request, sizes and tokens without one."""

    def known(self, path: str, size: int, /) -> Blob:
        """A file whose size somebody told; the first bytes that are read show whether it is true."""

    def stamp(self, path: str, /) -> str:
        """Token and time of its last change: equal bytes that were written again have another one."""


@runtime_checkable
class ReadsFirst(Protocol):
    """A store that is asked for bytes without being asked about them before."""

    def first_read(self, path: str, starts: Ints, stops: Ints, /, *, size: int) -> tuple[Blob, list[memoryview]] | None:
        """Parts of a file of this size, and the file; None where it must be looked for. FileNotFoundError."""


@runtime_checkable
class PinsLocations(Protocol):
    """A plug of stores whose locations may mean something else tomorrow, as a branch does."""

    def pinned(self, location: str, /, *, storage: Mapping[str, str] | None = None) -> str:
        """The same location, which means what is there now for good; DatasetNotFoundError."""


@runtime_checkable
class HasLinks(Protocol):
    """Names may be links, which nobody may follow who moves or removes files."""

    def list_without_links(self, folder: str = "", /) -> Iterator[tuple[str, int]]:
        """As `Store.list`, in any order; UnsafeReferenceError where the folder is a link, or is reached by one."""


@runtime_checkable
class SeesNames(Protocol):
    """Whether names are taken is known for next to nothing, as on a disk."""

    def taken(self, paths: Iterable[str], /) -> Iterable[str]:
        """Those of these names that are; nothing is opened, and no fence is asked."""


@runtime_checkable
class HasParts(Protocol):
    """Any part of it in one request, however long."""

    def part(self, start: int, stop: int) -> memoryview: ...


# ---- decoders
@runtime_checkable
class HasSound(Protocol):
    """Samples of sound at a constant rate."""

    @property
    def rate(self) -> int:
        """How many samples a second has."""

    @property
    def channels(self) -> int:
        """Numbers of a sample."""

    def __len__(self) -> int: ...
    def span(self, start: int, stop: int, /) -> NDArray[Any]:
        """[stop - start, channels] float32."""


# ---- readers of shards
@runtime_checkable
class StepReader(ShardReader, Protocol):
    """Part of one long cell that is not flat (HDF5, zarr, MCAP)."""

    def slice(self, column: str, row: int, start: int, stop: int, /) -> NDArray[Any]:
        """[stop - start, ...] steps that the cell has: numbers of the column's type and shape, or encoded images as
        objects (`bytes`): every step has one. IndexError for others, and for a null cell.
        """


@runtime_checkable
class HasLengths(Protocol):
    """An index of T."""

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T, -1 null; None where this column is not indexed."""


@runtime_checkable
class Verbatim(Protocol):
    """Cells of bytes where they lie, without a copy."""

    def verbatim(self, column: str, rows: Ints, /) -> list[memoryview] | None:
        """One view a row; None where they are not in memory, or not stored as they are shown."""


@runtime_checkable
class HoldsFiles(Protocol):
    """Cells that are files, to be read by range where they lie."""

    def held(self, column: str, rows: Ints, /) -> list[tuple[str, Blob] | None] | None:
        """Name (or empty) and bytes of each cell, None where it is null; None for all: they must be decoded."""


@runtime_checkable
class Physical(Protocol):
    """What the file itself says, which may not be what the table says."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def rows(self) -> int: ...


@runtime_checkable
class Sealed(Protocol):
    """It holds checksums of its own bytes, which nobody looks at unasked."""

    def verified(self) -> ShardReader:
        """The same file; what it hands out is compared first."""

    def compare(self) -> None:
        """All of the file, now; CorruptFileError."""

    def check(self) -> None:
        """What it says of its rows beside them is what they are, each decoded; CorruptFileError."""


@runtime_checkable
class WritesShards(Protocol):
    """A format of shards that are written, not only read."""

    def create(self, path: Path, schema: Schema, /, **options: Any) -> ShardWriter: ...


@runtime_checkable
class KnowsColumns(Protocol):
    """Columns known without asking the file."""

    def holds(self, column: str, /) -> bool:
        """True where the file surely has the column; False: ask `Physical`."""


# ---- shards
@runtime_checkable
class Verifiable(Protocol):
    """It may be opened so that bytes are compared before they are handed out."""

    def verified(self) -> Shard:
        """The same rows, compared when they are read."""


@runtime_checkable
class Copyable(Protocol):
    """A file of another format than Parquet, stored as it is read or compressed."""

    @property
    def one_file(self) -> bool:
        """False: it is several, and can only be read as it is."""

    @property
    def in_place(self) -> bool:
        """Whether it is read where it is: a file of this machine that is not compressed."""

    @property
    def nbytes(self) -> int:
        """Bytes of the file as it is read."""

    def packed(self) -> Blob:
        """The file as it is stored."""

    def unpacked(self, data: memoryview, /) -> memoryview:
        """The file as it is read, from all of its stored bytes; CorruptFileError."""

    def over(self, blob: Blob, /) -> Shard:
        """The same shard, read from this copy of the file as it is read."""


# ---- readables
@runtime_checkable
class Pushdown(Protocol):
    """An engine may scan and prune these rows itself."""

    def arrow_dataset(self) -> ArrowDataset | None:
        """None where the files alone do not say what the rows say."""


@runtime_checkable
class Checked(Protocol):
    """What only this plug can know is wrong."""

    def check(self, depth: Depth, /) -> Iterator[Finding]: ...


@runtime_checkable
class HasIds(Protocol):
    """Rows are found by id without reading all ids."""

    def find_ids(self, ids: Sequence[str], /) -> Ints:
        """[ids] row numbers, -1 where no row has the id."""


@runtime_checkable
class HasBounds(Protocol):
    """Shards that a condition rules out need not be read."""

    def bounds(self, column: str, /) -> Sequence[tuple[object, object] | None]:
        """[shards] least and most; (None, None) where every cell is null, None where nothing is known."""


@runtime_checkable
class BoundsEveryValue(Protocol):
    """`HasBounds` that no value of a shard lies outside of; others may leave NaN out, which SQL sorts above all."""

    @property
    def bounds_hold_nan(self) -> bool:
        """Whether a column that has a NaN in a shard has no bounds there."""


@runtime_checkable
class HasStorage(Protocol):
    """How its files are reached; obstore's option names, never printed."""

    @property
    def storage(self) -> Mapping[str, str] | None: ...
    @property
    def allow_outside(self) -> bool:
        """File references may leave the root."""


def storage_of(source: object, /) -> Mapping[str, str] | None:
    """The options by which a readable's files are reached; None where it has none."""
    known = ability(source, HasStorage)
    return None if known is None else known.storage


@runtime_checkable
class KeepsFiles(Protocol):
    """What was learned of copied-in files when they were committed."""

    def kept_packets(self, reference: str, /) -> Mapping[int, bytes]:
        """Video stream -> packet index; empty where none is kept."""

    def copied(self, key: str, /) -> Mapping[str, Copied]:
        """The files that the rows of a shard name, by path."""

    def copied_as(self, reference: str, /) -> Copied | None:
        """What was committed of a copied-in file that the version names; None where no digest of it is known."""

    def copied_file(self, reference: str, /) -> Blob | None:
        """A file that was copied in, out of the table's own store; None for any other reference. FileNotFoundError."""


@runtime_checkable
class OpensFiles(Protocol):
    """Files that its rows name lie inside of others, as videos in a Lance table of LeRobot."""

    def file_within(self, reference: str, /) -> Blob | None:
        """The bytes of one; None for any other reference."""


@runtime_checkable
class KeepsDerived(Protocol):
    """A place for what can be computed again, as `Table` has one."""

    def read_derived(self, name: str, /) -> bytes | None: ...
    def write_derived(self, name: str, data: bytes, /) -> None: ...


@runtime_checkable
class DecodedOnce(Protocol):
    """Steps of its shards take long to decode, so loaders keep local copies that are read in place, also for later."""

    @property
    def decoded_bytes(self) -> int:
        """Of copies of all shards with all columns of steps, about."""


@runtime_checkable
class NamesShards(Protocol):
    """Where a shard lies, for messages; its key's name by default."""

    def name_of(self, shard: Shard, /) -> str: ...


@runtime_checkable
class LengthsByShard(Protocol):
    """Lengths of some shards, without a look at the others."""

    def lengths_of(self, shards: Sequence[int], column: str, /) -> Ints:
        """[rows of these shards] T in the order asked for, -1 null."""


@runtime_checkable
class ShardSizes(Protocol):
    """Shards of its format that have no rows count in orders of that format."""

    @property
    def sizes(self) -> Sequence[int]:
        """[shards] rows of each, empty ones too."""


@runtime_checkable
class Pinnable(Protocol):
    """It may move on with commits, or lack the column that names its rows."""

    def with_id(self) -> Readable:
        """The same rows for good, with that column."""


@runtime_checkable
class HasVersion(Protocol):
    """It is a table at one version, as `Snapshot` is."""

    @property
    def version(self) -> Version: ...


@runtime_checkable
class OfATable(Protocol):
    """All of a table, opened by somebody."""

    @property
    def table(self) -> Table: ...
    @property
    def location(self) -> str:
        """As it was given."""

    @property
    def version(self) -> Version: ...
    @property
    def unfolded(self) -> Unfolded:
        """Where its files say otherwise; nothing where readers of the files are told by others."""


@runtime_checkable
class HasUnfolded(Protocol):
    """Its files may hold other columns than it shows, and readers of the files alone would not know."""

    @property
    def unfolded(self) -> Unfolded:
        """Where its files say otherwise."""


@runtime_checkable
class Folds(HasUnfolded, Protocol):
    """It knows which shards those are."""

    def lagging(self) -> Sequence[Shard]:
        """Those, as `shards` has them; opens none."""


# ---- tables
@runtime_checkable
class PlacesSides(Protocol):
    """Columns that are added later lie beside the shards; else shards are written anew."""

    def place_side(self, transaction: Transaction, /, *, n: str) -> str:
        """Where the side shard `n` is written, as `Table.place`."""


@runtime_checkable
class Partitioned(Protocol):
    """A shard has rows of one partition."""

    @property
    def partition_by(self) -> Sequence[str]:
        """Columns that new shards are partitioned by; may be none."""

    def partition_values(self, batch: pa.RecordBatch, /) -> Iterable[tuple[object, ...]]:
        """The partition of each row, in the order of `partition_by`."""


@runtime_checkable
class NumbersFields(Protocol):
    """Columns of files are found by number."""

    def field_ids(self, schema: Schema, /) -> Mapping[str, int]:
        """Dotted path -> the number that a file with these columns carries; empty where names decide."""


@runtime_checkable
class OfALake(Protocol):
    """Other clients read, write and clean up the same files."""

    @property
    def swept(self) -> frozenset[str]:
        """Endings of names that the lake's cleanup removes wherever they lie."""

    @property
    def plain_lists(self) -> bool:
        """Files must not say that inner lists have a fixed size."""

    @property
    def shard_format(self) -> str:
        """The format that all its data files have."""

    def held(self, schema: Schema, /) -> Schema:
        """A schema as it comes back: some types become wider ones."""


@runtime_checkable
class Removable(Protocol):
    """It is more than the files below its root, and knows how all of it goes."""

    def drop(self) -> None:
        """Take back a table that was just made, with everything in it."""


@runtime_checkable
class OpensUntyped(Protocol):
    """Its tables may lack the metadata that make them datasets, which `open` asks for."""

    def open_untyped(self, location: Any, /, *, storage: Mapping[str, str] | None = None) -> Table:
        """As `open`, whether or not the table has metadata."""


@runtime_checkable
class MayBeUntyped(Protocol):
    """A version of a table that may lack the metadata which make it a dataset."""

    @property
    def is_typed(self) -> bool:
        """Whether it has the key `mixtrain`."""


@runtime_checkable
class HasStrangers(Protocol):
    """Files may lie in it that are not part of it."""

    def strangers(self) -> Sequence[str]:
        """Paths of files that are not read."""

    def would_adopt(self) -> Sequence[str]:
        """Those that `adopt` would take in."""

    def metadata_edited(self) -> bool:
        """Whether `mixtrain.json` was edited by hand; unused until `adopt`."""

    def copied_files(self) -> Sequence[tuple[str, int, Need]]:
        """(path, size, need) of copied-in files: `needed`, `staged`, `orphan` or `stranger`."""


@runtime_checkable
class AdoptsByTasks(Protocol):
    """A table that looks into every file when it takes a folder of others' in, and can leave that to many processes."""

    def adopt_by(self, mapped: MapsTasks, /) -> Version:
        """Take the folder in, by one commit after all tasks have ended; the newest version where that was done.

        Args:
            mapped: Gives the results of a function over tasks in their order, wherever it runs; all are picklable.
        """


@runtime_checkable
class HasTags(Protocol):
    """Versions may have names, which `snapshot` and `rollback` take and `vacuum` honours."""

    def tags(self) -> Mapping[str, int | str]:
        """Name -> the id of its version."""

    def tag(self, name: str, version: Version, /, *, move: bool = False) -> None:
        """TagExistsError where another version has it and it is not to be moved; VersionNotFoundError."""

    def untag(self, name: str, /) -> None:
        """VersionNotFoundError where no version has it."""


# ---- sinks and formats
@runtime_checkable
class Discards(Protocol):
    """What it wrote goes when the conversion fails."""

    def discard(self) -> None: ...


@runtime_checkable
class Renews(Protocol):
    """It is told at least hourly that the conversion is alive."""

    def renew(self) -> None: ...


@runtime_checkable
class Creates(Protocol):
    """Datasets are converted into it."""

    def create(self, location: str, schema: Schema, /, **options: object) -> Sink: ...


@runtime_checkable
class OpensInPlace(Protocol):
    """Its folders are opened as datasets that are only read."""

    def open(self, location: str, /, *, storage: Mapping[str, str] | None = None) -> Readable:
        """All rows, which are sequences."""


@runtime_checkable
class TakesObjects(Protocol):
    """Objects of another package are datasets of this format, too."""

    def takes(self, source: object, /) -> bool:
        """Whether `scan` takes an object in place of a location."""


@runtime_checkable
class TypesColumns(Protocol):
    """Its files are Parquet, which may become a dataset as they are."""

    def column_types(self, location: str, /, *, storage: Mapping[str, str] | None = None) -> Mapping[str, ColumnType]:
        """What its own metadata say that columns mean, where cells stay as they are."""


@runtime_checkable
class Drops(Protocol):
    """Some columns have no place in it."""

    def dropped(self, schema: Schema, /) -> Mapping[str, str]:
        """Column -> why it is left out."""


@runtime_checkable
class TakesFiles(Protocol):
    """Files that rows name are written, too; `create` is told how to reach them, as `source_storage`."""

    def takes_files(self, schema: Schema, /) -> Collection[str]:
        """Columns whose files are."""


@runtime_checkable
class SaysMapping(Protocol):
    """A readable of another format that knows what of its source became which column."""

    def mapping(self) -> Sequence[Mapped]:
        """One for each thing of the source, in its order, those that are left out among them."""


@runtime_checkable
class WritesSamples(Protocol):
    """Samples are written one by one."""

    def writer(self, location: str, columns: Any, /, **options: Any) -> Any: ...


@runtime_checkable
class ScansRows(Protocol):
    """What was converted from it is shown as its own datasets are."""

    def scan_rows(self, rows: Readable, /, **options: Any) -> Readable | None:
        """The rows by the options of `scan`; None where they were not converted from this format."""


# ---- media
@runtime_checkable
class HasStarts(Protocol):
    """Reading is cheapest from these places."""

    @property
    def starts(self) -> Ints:
        """Frames that can be decoded without the ones before."""


@runtime_checkable
class ForDevices(Protocol):
    """It is taken unasked for these devices only."""

    DEVICES: Sequence[str]


# ---- executors
@runtime_checkable
class KeepsWorkers(Protocol):
    """Its workers can serve several runs, so that they start once for all passes of a verb."""

    def kept(self) -> AbstractContextManager[Any]:
        """Within the block an executor whose workers stay from one run to the next."""


@runtime_checkable
class StartsWorkers(Protocol):
    """Its workers start while whoever asks still plans."""

    def expect(self, count: int, /) -> None:
        """So many tasks will come, about."""
