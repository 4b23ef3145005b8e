"""Lance as a `LakeEngine`: versions read by the package `lance`, commits made by it, each as one operation.

What only adds is a `Merge`: it says all fragments and columns of the next version, so shards, schema and property
change at once, and Lance refuses it when any other commit of rows or columns came after the version that was read: the
compare-and-set that a commit needs. A merge may not take fragments away. What does is an `Update`, which Lance refuses
after a merge or when another operation touched the same fragments; each of ours touches the first one, so that of two
one is refused. Who takes fragments away and changes columns writes nearly all of them anew: an `Overwrite`.
"""

from __future__ import annotations

import json
import struct
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import (
    CommitUnknownError,
    DamagedTableError,
    DatasetExistsError,
    DatasetNotFoundError,
    ReadOnlyError,
    SchemaMismatchError,
    SeqlakeError,
    VersionNotFoundError,
)
from seqlake.files.credentials import Storage, for_deltalake
from seqlake.files.locations import absolute, is_local, local_path, scheme
from seqlake.files.stores import list_without_links, open_store
from seqlake.plugins import require
from seqlake.protocols import Version
from seqlake.shard_formats.lance import package
from seqlake.shards.engines import refuse_dotted
from seqlake.tables._lakes import types
from seqlake.tables._lakes.engine import Expired, LakeEngine, RivalError
from seqlake.tables._lakes.paths import lake_blob
from seqlake.tables._lakes.table import LakeTable  # noqa: F401 - the plug takes both from here
from seqlake.tables.lance import schemas
from seqlake.tables.lance.features import refuse_unreadable, refuse_unwritable
from seqlake.tables.lance.fragments import FragmentFile, borrowed_file, fragment_file, shard_of
from seqlake.versions import names, shard_formats
from seqlake.versions.messages import message
from seqlake.versions.state import FileList, TableState
from seqlake.versions.tags import check_free, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from seqlake.protocols import Shard, Store
    from seqlake.spec.schema import Schema
    from seqlake.tables._lakes.engine import Added, LakeProposal
    from seqlake.versions.state import TableFile

_OPERATION, _TRANSACTION, _MESSAGE = "seqlake.operation", "seqlake.transaction", "lance.commit.message"
_FORMATS = {(0, 3): (2, 0)}  # what a file says -> what a dataset says of it, where these differ
_FOOTER = struct.Struct("<HH4s")


class LanceEngine(LakeEngine):
    """One Lance dataset.

    Args:
        root: Its folder, an absolute path or URI.
        storage: obstore's options; never printed.
        options: Lance's own options, where the dataset came with some; by default made from `storage`.
    """

    shard_format = "lance"
    fixed_size_inner = True

    def __init__(
        self, root: str, /, *, storage: Mapping[str, str] | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self._root = root
        self._storage = None if storage is None else Storage(storage)
        self._options = None if options is None else Storage(options)

    def __repr__(self) -> str:
        return f"LanceEngine({self._root!r})"

    @classmethod
    def of(cls, dataset: Any, /) -> LanceEngine:
        """Of a `lance.LanceDataset`, whose options open its files, too; its newest version counts, not the one held."""
        options = dict(dataset.initial_storage_options or {})
        ours = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
        return cls(absolute(str(dataset.uri)), storage=ours or None, options=options or None)

    @property
    def root(self) -> str:
        """The dataset's folder, as a path or URI."""
        return self._root

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Obstore's options; never printed."""
        return self._storage

    # ---- reading
    def state(self, version: int | str | datetime | None = None, /) -> TableState:
        """A version, by number, tag or time; None for the newest.

        Raises:
            VersionNotFoundError: It expired, or was never there.
        """
        number = self._number(version)
        try:
            dataset = self.dataset(number)
        except DatasetNotFoundError:
            if number is None:
                raise
            raise self._no_version(number) from None
        with self._reading():
            refuse_unreadable(dataset, root=self._root)
            now = schemas.names_now(dataset.lance_schema)
            store = open_store(self._root, storage=self._storage)
            return TableState(
                version=self._described(dataset),
                schema=_plain(dataset.schema),
                mixtrain=_property(dataset),
                files=FileList.of(
                    fragment_file(one, now, root=self._root, blob=store.blob) for one in dataset.get_fragments()
                ),
            )

    def versions(self) -> Sequence[Version]:
        """The versions that can be read, oldest first."""
        dataset = self.dataset()
        with self._reading():
            return [self._version(dataset, one) for one in dataset.versions()]

    def shard(self, store: Store, file: TableFile, /, *, index: bytes | None) -> Shard:
        """A fragment with the names that its columns have in the version."""
        if not isinstance(file, FragmentFile):
            return super().shard(store, file, index=index)
        return shard_of(file, lambda path, nbytes: self._plugged(store, path, nbytes, file.rows))

    def names(self, store: Store, /) -> LanceTags:
        """Where its names are: Lance has tags of its own."""
        del store
        return LanceTags(self)

    def confirm(self, version: int | str, /) -> None:
        """VersionNotFoundError where a version expired."""
        if version not in [one["version"] for one in self.dataset().versions()]:
            raise self._no_version(version)

    # ---- writing
    def lake_type(self, kind: pa.DataType, /, *, column: str) -> pa.DataType:
        """Lance has the types that shards of Lance have."""
        del column
        return kind

    def lake_schema(self, schema: Schema, /) -> pa.Schema:
        """As shards of Lance hold it: lists of a known size are such."""
        refuse_dotted(schema, "Lance")
        return _plain(schema.stored(fixed_size_inner=True))

    def data_path(self, name: str, partition: Mapping[str, object], /) -> str:
        """`data/`, where Lance looks."""
        del partition
        return names.data(name)

    def refuse_absent(self) -> None:
        """Raise `DatasetNotFoundError` unless a Lance dataset is here."""
        self.dataset()

    def create(self, schema: Schema, /, *, partition_by: Sequence[str]) -> None:
        """Version 1 of a new dataset, with its property.

        Raises:
            DatasetExistsError: Something is there already.
            SchemaMismatchError: Columns that Lance cannot have, or partitions.
        """
        if partition_by:
            raise SchemaMismatchError("Lance datasets have no partitions.", hint="Leave partition_by out.")
        arrow = self.lake_schema(schema)
        store = open_store(self._root, storage=self._storage)
        taken = next((path for path, _ in list_without_links(store) if not path.startswith("files/")), None)
        if taken is not None:
            raise DatasetExistsError(
                f"{self._root} holds something already ({taken}).",
                path=self._root,
                hint="Open it with sl.open, or choose another folder.",
            )
        structs = any(shard_formats.plug("lance").needs_newer(field.type) for field in arrow)  # type: ignore[attr-defined]
        arrow = arrow.with_metadata({types.PROPERTY: types.encode_metadata(schema)})
        self._package().write_dataset(
            arrow.empty_table(),
            self._uri(),
            data_storage_version="2.2" if structs else "2.0",
            storage_options=self._lance_options(),
            transaction_properties={_OPERATION: "create"},
        )

    def check(self, proposal: LakeProposal, /) -> None:
        """Refuse what cannot be written: rows with numbers of their own, pages of another kind, other types."""
        dataset = self.dataset()
        refuse_unwritable(dataset, root=self._root)
        self._next_schema(dataset, proposal)

    def commit(self, proposal: LakeProposal, /) -> Version:
        """One merge on top of `proposal.base`.

        Raises:
            RivalError: Another commit came between.
            CommitUnknownError: The store gave no answer.
            SchemaMismatchError: A new shard has other types than the dataset.
        """
        base = self.dataset(int(proposal.base.version.id))
        schema = self._next_schema(base, proposal)
        new = [self._fragment(added, schema) for added in proposal.add]
        properties = {_OPERATION: proposal.operation, _TRANSACTION: proposal.transaction.id}
        return self._committed(base, self._operation(base, proposal, schema, new), properties)

    def _operation(self, base: Any, proposal: LakeProposal, schema: Any, new: list[Any]) -> Any:
        operations = self._package().LanceOperation
        gone = {json.loads(file.fragment)["id"] for file in proposal.remove if isinstance(file, FragmentFile)}
        fragments = [one.metadata for one in base.get_fragments()]
        kept = [one for one in fragments if one.id not in gone]
        if not gone:
            manifest = bytes(base._ds.serialized_manifest())  # noqa: SLF001 - nothing public tells it
            first = schemas.most_fragments(manifest) + 1
            return operations.Merge([*kept, *(_numbered(one, first + n) for n, one in enumerate(new))], schema)
        if proposal.schema is None and proposal.mixtrain is None:
            touched = [one for one in fragments[:1] if one.id not in gone]
            return operations.Update(sorted(gone), touched, new, [])
        if any(one.deletion_file is not None for one in kept):
            raise ReadOnlyError(
                f"{self._root}: Lance cannot change columns and replace fragments while others keep deleted rows.",
                path=self._root,
                hint="Compact it first: lance.dataset(...).optimize.compact_files().",
            )
        return operations.Overwrite(schema, [*kept, *new])

    def rollback(self, version: int | str, /, *, base: TableState) -> Version:
        """A new version with the rows, schema and property of an old one."""
        newest, target = self.dataset(int(base.version.id)), self.dataset(int(version))
        refuse_unwritable(newest, root=self._root)
        operations, properties = self._package().LanceOperation, {_OPERATION: "rollback"}
        fragments = [one.metadata for one in target.get_fragments()]
        if all(one.deletion_file is None for one in fragments):
            return self._committed(newest, operations.Overwrite(target.lance_schema, fragments), properties)
        restored = self._committed(newest, operations.Restore(int(version)), properties)
        if restored.id != newest.version + 1:
            # Lance restores over whatever came, and overwrites with no fragment that has deleted rows: put it back.
            self._committed(self.dataset(int(restored.id)), operations.Restore(int(restored.id) - 1), properties)
            raise RivalError
        return restored

    def expire(
        self, limit: datetime, /, *, dry_run: bool, keep: Callable[[], Collection[int | str]] = tuple
    ) -> Expired:
        """Remove versions that were replaced before `limit`, but for those that have tags."""
        dataset = self.dataset()
        known = [(int(one["version"]), _time(one)) for one in dataset.versions()]
        tagged = {*dataset_tags(dataset).values(), *keep()}
        ended = [number for (number, _), (_, replaced) in pairwise(known) if replaced < limit and number not in tagged]
        retained = {file.name: file for number, _ in known if number not in ended for file in self.state(number).files}
        retained = {file.name: file for file in _of_branches(dataset)} | retained
        gone = (part for number in ended for file in self.state(number).files for part in _parts(file))
        dropped = {part.path: max(part.nbytes, 0) for part in gone}
        needed = {part.path for file in retained.values() for part in _parts(file)}
        if ended and not dry_run:
            dataset.cleanup_old_versions(versions=ended, error_if_tagged_old_versions=False)
        removed = {path: dropped[path] for path in sorted(dropped.keys() - needed)}
        return Expired(removed=removed, retained=list(retained.values()))

    def drop(self) -> None:
        """Remove the dataset and its files, but for what is ours."""
        store = open_store(self._root, storage=self._storage)
        theirs = ("_versions/", "_transactions/", "_deletions/", "_indices/", "_refs/", f"{names.DATA}/")
        store.delete([path for path, _ in list_without_links(store) if path.startswith(theirs)])

    # ---- Lance's package
    def _package(self) -> Any:
        return package("lance")

    def _uri(self) -> str:
        return str(local_path(self._root)) if is_local(self._root) else self._root

    def _lance_options(self) -> dict[str, str] | None:
        if self._options is not None:
            return dict(self._options)
        options = {} if is_local(self._root) else for_deltalake(self._storage, scheme=scheme(self._root))
        return {name.lower().replace("aws_allow_http", "allow_http"): value for name, value in options.items()} or None

    def dataset(self, version: int | None = None, /) -> Any:
        """The dataset as Lance's package opens it, at a version or the newest; DatasetNotFoundError."""
        package_ = self._package()
        try:
            with self._reading():
                return package_.dataset(self._uri(), version=version, storage_options=self._lance_options())
        except DamagedTableError as error:
            if "not found" not in str(error.__cause__):
                raise
            raise DatasetNotFoundError(
                f"No Lance dataset is at {self._root}" + (f" in version {version}." if version is not None else "."),
                path=self._root,
                hint=f"Create one with sl.create('lance:{self._root}', schema).",
            ) from None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Around what the package reads: what it says of damaged metadata, panics too, is an error of ours."""
        try:
            yield
        except (SeqlakeError, ImportError, MemoryError):
            raise
        except BaseException as error:
            said = str(error)
            far = isinstance(error, OSError) and not is_local(self._root) and not {"decode", "found"} & {*said.split()}
            if far or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
                raise
            raise DamagedTableError(
                f"{self._root}: the metadata of the Lance dataset cannot be read ({said.partition(', /')[0][:300]}).",
                path=self._root,
                hint="Restore the files of its folder from a copy, or open an older version.",
            ) from error

    def _number(self, version: int | str | datetime | None) -> int | None:
        if isinstance(version, datetime):
            numbers = [int(one["version"]) for one in self.dataset().versions() if _time(one) <= version]
            if not numbers:
                raise self._no_version(version.isoformat())
            return numbers[-1]
        if isinstance(version, str):
            raise self._no_version(version)
        return version

    def _no_version(self, version: object) -> VersionNotFoundError:
        listed = [one["version"] for one in self.dataset().versions()]
        return VersionNotFoundError(
            f"{self._root} has no version {version}: versions {listed[0]} to {listed[-1]} can be read.",
            path=self._root,
            hint="`ds.versions()` lists them.",
        )

    def _described(self, dataset: Any) -> Version:
        return self._version(dataset, next(one for one in dataset.versions() if one["version"] == dataset.version))

    def _version(self, dataset: Any, one: Mapping[str, Any]) -> Version:
        number = int(one["version"])
        try:
            transaction = dataset.read_transaction(number)
        except (OSError, ValueError):  # it was cleaned up
            transaction = None
        properties = {} if transaction is None else transaction.transaction_properties or {}
        theirs = "unknown" if transaction is None else type(transaction.operation).__name__.lower()
        return Version(
            id=number,
            time=_time(one),
            operation=properties.get(_OPERATION, theirs),
            rows=int(one["metadata"].get("total_rows", -1)),
            message=properties.get(_MESSAGE),
        )

    def _next_schema(self, dataset: Any, proposal: LakeProposal) -> Any:
        before = dataset.lance_schema
        first = int(dataset.max_field_id) + 1
        return schemas.evolved(before, proposal.schema, proposal.mixtrain, proposal.renamed, first)

    def _fragment(self, added: Added, schema: Any) -> Any:
        """A shard of ours as a fragment."""
        fragments = require("lance.fragment", extra="lance")
        store = open_store(self._root, storage=self._storage)
        shard = self._plugged(store, added.path, added.nbytes, added.rows)
        size = np.array([added.nbytes])
        major, minor, _ = _FOOTER.unpack(bytes(shard.blob.ranges(size - _FOOTER.size, size)[0]))
        major, minor = _FORMATS.get((major, minor), (major, minor))
        stored, fields = shard.open().schema, {field.name(): field for field in schema.fields()}  # type: ignore[attr-defined]
        held = schema.to_pyarrow()
        numbers: list[int] = []
        for field in stored:
            if field.name not in fields or held.field(field.name).type != field.type:
                there = held.field(field.name).type if field.name in fields else "no such column"
                raise SchemaMismatchError(
                    f"Column {field.name!r}: the Lance dataset has {there}, shards of ours would have {field.type}.",
                    path=self._root,
                    hint="Append such rows with lance.write_dataset(..., mode='append').",
                )
            numbers += schemas.numbers_in(fields[field.name], whole=(major, minor) <= (2, 0))
        file = fragments.DataFile(
            path=added.path.removeprefix(f"{names.DATA}/"),
            fields=numbers,
            column_indices=list(range(len(numbers))),
            file_major_version=major,
            file_minor_version=minor,
            file_size_bytes=added.nbytes,
        )
        return fragments.FragmentMetadata(id=0, files=[file], physical_rows=added.rows)

    def _plugged(self, store: Store, path: str, nbytes: int, rows: int) -> shard_formats.PluggedShard:
        nbytes = nbytes if nbytes >= 0 else store.blob(path).size
        blob, key = lake_blob(store, path, nbytes, rows, storage=self._storage)
        return shard_formats.PluggedShard(format=self.shard_format, blob=blob, rows=rows, nbytes=nbytes, key=key)

    def _committed(self, base: Any, operation: Any, properties: dict[str, str]) -> Version:
        lance, said = self._package(), message()
        properties |= {} if said is None else {_MESSAGE: said}
        transaction = lance.Transaction(base.version, operation, transaction_properties=properties)
        with self._as_answer(properties.get(_TRANSACTION, "")):
            dataset = lance.LanceDataset.commit(
                self._uri(), transaction, max_retries=0, storage_options=self._lance_options()
            )
        return self._described(dataset)

    @contextmanager
    def _as_answer(self, transaction: str) -> Iterator[None]:
        """Around a commit: a refusal is a rival's, an error of the store leaves doubt."""
        from lance.commit import CommitConflictError as Refused

        try:
            yield
        except Refused as error:
            raise RivalError from error
        except OSError as error:
            if "onflict" in str(error) or "Incompatible transaction" in str(error):
                raise RivalError from error
            raise CommitUnknownError(
                f"{self._root}: the store gave no answer to a commit ({str(error).partition(', /')[0]}).",
                path=self._root,
                hint=f"Look whether a version of the transaction {transaction} is there.",
            ) from error


class LanceTags:
    """The tags of a Lance dataset, which its own cleanup honours.

    Args:
        engine: The dataset.
    """

    def __init__(self, engine: LanceEngine, /) -> None:
        self._engine = engine

    def tags(self) -> dict[str, int | str]:
        """Name -> version, by name."""
        return dict(sorted(dataset_tags(self._engine.dataset()).items()))

    def find(self, name: str, /) -> int | str | None:
        """The version that has a name."""
        return dataset_tags(self._engine.dataset()).get(name)

    def put(self, name: str, version: int | str, /, *, move: bool) -> None:
        """Give a version a name; it is looked at again afterwards, so that a cleanup cannot miss it."""
        self._engine.confirm(version)
        dataset = self._engine.dataset()
        known = dataset_tags(dataset)
        check_free(known, name, version, move=move, path=self._engine.root)
        if known.get(name) == version:
            return
        (dataset.tags.update if name in known else dataset.tags.create)(name, int(version))
        self._engine.confirm(version)

    def remove(self, name: str, /) -> None:
        """Take a name away."""
        dataset = self._engine.dataset()
        known = dataset_tags(dataset)
        if name not in known:
            raise unknown(known, name, path=self._engine.root)
        dataset.tags.delete(name)


def dataset_tags(dataset: Any, /) -> dict[str, int | str]:
    """The tags of a dataset's own line of versions; those of its branches are not read."""
    return {
        name: int(tag["version"]) for name, tag in dataset.tags.list().items() if tag.get("branch") in {None, "main"}
    }


def _of_branches(dataset: Any) -> Iterator[FragmentFile]:
    """The files of a dataset that its branches read."""
    for name in dataset.branches.list():
        for version in dataset.checkout_version((name, None)).versions():
            branch = dataset.checkout_version((name, version["version"]))
            now = schemas.names_now(branch.lance_schema)
            for fragment in branch.get_fragments():
                file = borrowed_file(fragment, now)
                if file is not None:
                    yield file


def _plain(arrow: pa.Schema) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in arrow])


def _property(dataset: Any) -> str:
    """The property: of the schema, else of the table, where other clients may have put it."""
    inside = (dataset.schema.metadata or {}).get(types.PROPERTY.encode())
    return inside.decode(errors="replace") if inside else str((dataset.metadata or {}).get(types.PROPERTY) or "")


def _numbered(fragment: Any, number: int) -> Any:
    fragment.id = number
    return fragment


def _parts(file: TableFile) -> Sequence[Any]:
    return file.parts if isinstance(file, FragmentFile) else ()


def _time(one: Mapping[str, Any]) -> datetime:
    """When a version was made; Lance gives the time of this machine's zone."""
    time: datetime = one["timestamp"]
    return time.astimezone(UTC)
