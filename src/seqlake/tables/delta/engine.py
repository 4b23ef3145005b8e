"""Delta as an `LakeEngine`: versions read by deltalake, commits written as one JSON file of the log if absent.

deltalake can add files of ours, but not in one commit with a new schema, a new property and files that leave. The log
is an open protocol: a commit is one name created if absent, which is what our stores do on every file system and
bucket. Tables whose features ask more of a writer are refused, see `actions.py`.

In a Unity Catalog, two requests of its open REST interface say where a table lies, and lend keys for it: deltalake can
load such a table but does not say where it lies, which is needed to read shards and write beside them.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pyarrow as pa

from seqlake import plugins
from seqlake.errors import (
    CommitUnknownError,
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
from seqlake.spec.schema import ID, comparable
from seqlake.tables._lakes import paths, types
from seqlake.tables._lakes.damage import replaced
from seqlake.tables._lakes.engine import Expired, LakeEngine, RivalError
from seqlake.tables.delta import actions, listing, retention, schemas
from seqlake.tables.delta.log import LOG, MESSAGE, DeltaLog, described, hold_checkpoints, is_there
from seqlake.versions import names
from seqlake.versions.messages import message
from seqlake.versions.small_files import on_disk
from seqlake.versions.state import FileList, TableState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from seqlake.protocols import Store, Version
    from seqlake.spec.schema import Schema
    from seqlake.tables._lakes.engine import LakeProposal
    from seqlake.tables._lakes.naming import VersionNames

_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.float16(): pa.float32()}


class DeltaEngine(LakeEngine):
    """One Delta table.

    Args:
        root: Its folder, an absolute path or URI.
        storage: obstore's options; never printed.
        options: deltalake's own options, where the table came with some; by default made from `storage`.
    """

    def __init__(
        self, root: str, /, *, storage: Mapping[str, str] | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self._root = root
        self._storage = None if storage is None else Storage(storage)
        self._options = None if options is None else Storage(options)
        self._newest: Any = None
        self._bounded = False
        self._seen: tuple[int, bytes, str] | None = None  # a version, the digest of its file, and the table's id

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_newest": None}

    def __repr__(self) -> str:
        return f"DeltaEngine({self._root!r})"

    @classmethod
    def of(cls, table: Any, /, *, storage: Mapping[str, str] | None = None) -> DeltaEngine:
        """Of a `DeltaTable`; with its own options, which may be more than `storage` says."""
        options = dict(getattr(table, "_storage_options", None) or {})
        return cls(
            absolute(str(table.table_uri)), storage={**options, **(storage or {})} or None, options=options or None
        )

    @classmethod
    def of_unity(cls, address: str, /, *, storage: Mapping[str, str] | None = None) -> DeltaEngine:
        """Of a name in a Unity Catalog, with the keys that the catalog lends for it."""
        location, options = resolve(address, storage=storage)
        return cls(absolute(location), storage=options or None)

    @property
    def root(self) -> str:
        """The table's folder, as a path or URI."""
        return self._root

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Obstore's options; never printed."""
        return self._storage

    @property
    def log(self) -> DeltaLog:
        """The JSON files of the log, of the table that was opened.

        Raises:
            DatasetNotFoundError: That one was removed; another one may have its folder by now.
        """
        log = self._log()
        if self._seen is None:
            return log
        number, digest, name = self._seen
        if not log.digest(number) or log.digest(number) != digest:
            self._newest, self._bounded = None, False
            table = self._loaded(None)
            if str(table.metadata().id) != name:
                raise replaced(self._root)
            self._see(table, log)
        return log

    def names(self, store: Store, /) -> VersionNames:
        """Where the names of versions of the table that was opened are kept."""
        _ = self.log
        return super().names(store)

    # ---- reading
    def state(self, version: int | str | datetime | None = None, /) -> TableState:
        """A version, by number or time; None for the newest.

        Raises:
            VersionNotFoundError: It expired, or was never there.
        """
        log = self.log
        number = retention.number_of(log, version)
        try:
            table = self._loaded(number)
        except SeqlakeError:
            raise
        except Exception as error:
            if number is None:
                raise
            raise retention.not_found(log, number) from error
        if number is None or self._seen is None:
            self._see(table, log)
        actions.refuse_to_read(table.protocol(), root=self._root)
        fields = schemas.fields_of(table)
        actions.refuse_inner_names(schemas.renamed_inside(fields), root=self._root)
        metadata = table.metadata()
        return TableState(
            version=log.version(table.version()),
            schema=comparable(pa.schema(table.schema().to_arrow())),
            mixtrain=metadata.configuration.get(types.PROPERTY) or "",
            files=FileList.of(listing.files(table, schemas.physical(fields), partition_by=metadata.partition_columns)),
            partition_by=list(metadata.partition_columns),
        )

    def versions(self) -> Sequence[Version]:
        """The versions that can be read, oldest first."""
        log = self.log
        return retention.versions(log, lambda number: listing.counts(self._table(number)))

    # ---- writing
    def lake_type(self, kind: pa.DataType, /, *, column: str) -> pa.DataType:
        """The nearest type that Delta has."""
        return types.lake_type(kind, column=column, wider=_WIDER, lake="Delta")

    def data_path(self, name: str, partition: Mapping[str, object], /) -> str:
        """`data/` and a folder for each partition value, as Hive names them."""
        folders = [f"{column}={_hive(value)}" for column, value in partition.items()]
        return "/".join([names.DATA, *folders, name])

    def refuse_absent(self) -> None:
        """Raise `DatasetNotFoundError` unless a Delta table is here."""
        if not is_there(self.log.store):
            raise self._absent()

    def create(self, schema: Schema, /, *, partition_by: Sequence[str]) -> None:
        """Version 0 of a new table, with its property.

        Raises:
            DatasetExistsError: Something is there already.
            SchemaMismatchError: Columns that Delta cannot have, or cannot partition by.
        """
        store = open_store(self._root, storage=self._storage)
        arrow = types.lake_schema(schema, self.lake_type)
        bad = [name for name in partition_by if name not in schema or schema[name].category != "scalar" or name == ID]
        if bad:
            raise SchemaMismatchError(
                f"A table is partitioned by scalar columns other than {ID!r}; found {', '.join(bad)}.",
                hint=f"The columns are {', '.join(schema.names)}.",
            )
        leftovers = [
            path for path, _ in list_without_links(store) if path.startswith((f"{LOG}/", names.METADATA, names.OURS))
        ]
        if leftovers:
            raise DatasetExistsError(
                f"{self._root} holds a table already ({leftovers[0]}).",
                path=self._root,
                hint="Open it with sl.open, or choose another folder.",
            )
        _deltalake().DeltaTable.create(
            self._uri(),
            schema=arrow,
            partition_by=list(partition_by) or None,
            configuration={types.PROPERTY: types.encode_metadata(schema)},
            raise_if_key_not_exists=False,
            storage_options=self._deltalake_options(),
            commit_properties=_deltalake().CommitProperties(custom_metadata={actions.OPERATION: "create"}),
        )

    def check(self, proposal: LakeProposal, /) -> None:
        """Refuse what this table cannot take: features that ask more of a writer, renames without column mapping."""
        table = self._table(None) if self._newest is None else self._newest  # `commit` looks once more
        actions.refuse_to_write(table, proposal, root=self._root)
        if proposal.schema is not None:
            schemas.evolved(table, proposal)

    def commit(self, proposal: LakeProposal, /) -> Version:
        """One file of the log, on top of `proposal.base`.

        Raises:
            RivalError: Another commit has that version.
            CommitUnknownError: The store gave no answer.
        """
        log, base = self.log, proposal.base
        number = int(base.version.id) + 1
        table = self._table(int(base.version.id))
        actions.refuse_to_write(table, proposal, root=self._root)
        lines = actions.lines(table, proposal, log=log)
        try:
            log.create(number, lines, transaction=proposal.transaction.id)
        except FileExistsError:
            if log.transaction_of(number) != proposal.transaction.id:
                raise RivalError from None
        except OSError as error:
            self._after_failure(log, number, proposal.transaction.id, error)
        if actions.checkpoint_is_due(table, number):
            with suppress(Exception):  # derived, and the next one is as good
                self._table(number).create_checkpoint()
        return described(number, lines)  # not read again: it stands, whatever the store answers now

    def rollback(self, version: int | str, /, *, base: TableState) -> Version:
        """A new version with the rows, schema and property of an old one."""
        deltalake = _deltalake()
        table = deltalake.DeltaTable(
            self._uri(), version=int(base.version.id), storage_options=self._deltalake_options()
        )
        said = message()
        once = deltalake.CommitProperties(
            max_commit_retries=0, custom_metadata=None if said is None else {MESSAGE: said}
        )
        try:
            table.restore(int(version), commit_properties=once)
        except deltalake.exceptions.CommitFailedError as error:
            raise RivalError from error
        except deltalake.exceptions.DeltaError as error:
            raise VersionNotFoundError(
                f"{self._root}: version {version} cannot come back, because files of it are gone ({error}).",
                path=self._root,
                hint="A vacuum removed them; `ds.versions()` lists newer versions.",
            ) from error
        return self._log().version(int(base.version.id) + 1)

    def confirm(self, version: int | str, /) -> None:
        """Refuse a version that no longer can be read; the number of the oldest is written before anything goes."""
        log = self.log
        if version not in retention.readable(log):
            raise retention.not_found(log, version)

    def expire(
        self, limit: datetime, /, *, dry_run: bool, keep: Callable[[], Collection[int | str]] = tuple
    ) -> Expired:
        """Forget versions that were replaced before `limit`, and remove the data files that only they named."""
        return retention.expire(self.log, limit, dry_run=dry_run, state=self.state, keep=keep)

    def drop(self) -> None:
        """Remove the log, and every data file that it names or that is ours."""
        store = self.log.store
        store.delete([path for path, _ in list_without_links(store, LOG)])
        store.delete([path for path, _ in list_without_links(store, names.DATA) if paths.owner(path) is not None])

    # ---- inside
    def _log(self) -> DeltaLog:
        """Whatever log is there."""
        return DeltaLog(open_store(self._root, storage=self._storage))

    def _see(self, table: Any, log: DeltaLog) -> None:
        """Remember what tells this table from another one that has its folder later."""
        number = int(table.version())
        self._seen = (number, log.digest(number), str(table.metadata().id))

    def _loaded(self, version: int | None) -> Any:
        try:
            return self._table(version)
        except _deltalake().exceptions.TableNotFoundError as error:
            raise self._absent() from error

    def _table(self, version: int | None) -> Any:
        deltalake = _deltalake()
        if not self._bounded:
            hold_checkpoints(self._log().store)
            self._bounded = True
        if version is None:
            if self._newest is None:
                self._newest = deltalake.DeltaTable(self._uri(), storage_options=self._deltalake_options())
            else:
                self._newest.update_incremental()
            return self._newest
        if self._newest is not None and self._newest.version() == version:
            return self._newest
        return deltalake.DeltaTable(self._uri(), version=version, storage_options=self._deltalake_options())

    def _uri(self) -> str:
        return str(local_path(self._root)) if is_local(self._root) else self._root

    def _deltalake_options(self) -> dict[str, str] | None:
        if self._options is not None:
            return dict(self._options)
        if is_local(self._root) or self._storage is None:
            return None
        return for_deltalake(self._storage, scheme=scheme(self._root))

    def _absent(self) -> DatasetNotFoundError:
        return DatasetNotFoundError(
            f"Expected a Delta table at {self._root}, found no {LOG}/.",
            path=self._root,
            hint=f"sl.create('delta:{self._root}', schema) makes one.",
        )

    def _after_failure(self, log: DeltaLog, number: int, transaction: str, error: OSError) -> None:
        """The create raised: did it make the version all the same?"""
        try:
            committed = log.transaction_of(number)
        except OSError:
            raise self._unknown(transaction) from error
        if committed == transaction:
            return
        if committed is not None:
            raise RivalError from error
        if on_disk(log.store) or isinstance(error, PermissionError):
            raise error
        raise self._unknown(transaction) from error

    def _unknown(self, transaction: str) -> CommitUnknownError:
        return CommitUnknownError(
            f"{self._root}: no answer to the commit of transaction {transaction}. It may have been made.",
            path=self._root,
            hint=f"Look for {transaction} in the newest files of {LOG}/ before you commit the same rows again.",
        )


def _hive(value: object) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if value is None else quote(actions.partition_text(value) or "", safe=" -_.")


def _deltalake() -> Any:
    return plugins.require("deltalake", extra="delta")


_API = "/api/2.1/unity-catalog"
_TIMEOUT = 30.0
_ADDRESS = ("unity_workspace_url", "databricks_workspace_url", "databricks_host")
_TOKEN = ("unity_access_token", "databricks_access_token", "databricks_token")
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def resolve(address: str, /, *, storage: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """Where a table of a Unity Catalog lies, and the storage options that open it.

    Args:
        address: As in `uc://catalog.schema.table`.
        storage: `databricks_workspace_url` and `databricks_access_token`, by default from the variables of these
            names in capitals; other options go on to the store.

    Raises:
        DatasetNotFoundError: The catalog does not know the table, or there is none to ask.
        ReadOnlyError: It refuses.

    Example:
        ```python
        location, options = resolve("uc://robots.lab.episodes")
        ```
    """
    given = {name.lower(): value for name, value in (storage or {}).items()}
    catalog, token = _first(given, _ADDRESS), _first(given, _TOKEN)
    if not catalog or not token:
        raise DatasetNotFoundError(
            f"{address}: no Unity Catalog is configured.",
            path=address,
            hint="Set DATABRICKS_WORKSPACE_URL and DATABRICKS_ACCESS_TOKEN, or pass them as storage=.",
        )
    name = address.removeprefix("uc://").strip("/")
    table = _ask(catalog, token, f"/tables/{quote(name, safe='.')}", address=address)
    location = str(table.get("storage_location") or "")
    rest = {key: value for key, value in given.items() if not key.startswith(("unity_", "databricks_"))}
    if urlsplit(location).scheme in {"", "file"}:
        return location, rest
    return location, {**rest, **_lent(catalog, token, str(table.get("table_id")), address=address)}


def _first(given: Mapping[str, str], names: tuple[str, ...]) -> str:
    values = (given.get(name) or os.environ.get(name.upper()) for name in names)
    return next((value for value in values if value), "").rstrip("/")


def _lent(catalog: str, token: str, table: str, *, address: str) -> dict[str, str]:
    """Keys for a table: to write if the catalog lets us, else to read."""
    for operation in ("READ_WRITE", "READ"):
        try:
            body = {"table_id": table, "operation": operation}
            answer = _ask(catalog, token, "/temporary-table-credentials", body, address=address)
        except ReadOnlyError:
            if operation == "READ":
                raise
            continue
        return _as_options(answer)
    raise AssertionError("the last operation returns or raises")


def _as_options(lent: Mapping[str, Any]) -> dict[str, str]:
    aws, azure = lent.get("aws_temp_credentials"), lent.get("azure_user_delegation_sas")
    google = lent.get("gcp_oauth_token")
    if aws:
        names = ("access_key_id", "secret_access_key", "session_token")
        return {name: str(aws[name]) for name in names if aws.get(name)}
    if azure:
        return {"sas_token": str(azure["sas_token"])}
    return {"bearer_token": str(google["oauth_token"])} if google else {}


def _ask(catalog: str, token: str, path: str, body: Mapping[str, str] | None = None, *, address: str) -> dict[str, Any]:
    place = urlsplit(catalog if "://" in catalog else f"https://{catalog}")
    if place.scheme != "https" and place.hostname not in _LOOPBACK:
        raise ReadOnlyError(f"{address}: a token is sent over https only, found {place.scheme}://{place.hostname}.")
    request = urllib.request.Request(  # noqa: S310 - https, or this machine
        f"{place.scheme}://{place.netloc}{_API}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "seqlake"},
    )
    # A redirect may lead to another host, or out of https: the token does not go along.
    request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - as above
            document: dict[str, Any] = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise DatasetNotFoundError(
                f"{address}: the catalog at {place.hostname} knows no such table.",
                path=address,
                hint="The address is uc://catalog.schema.table.",
            ) from None
        raise ReadOnlyError(
            f"{address}: the catalog at {place.hostname} refused ({error.code} {error.reason}).",
            path=address,
            hint="Ask for USE and SELECT on the table, and for external use of its schema.",
        ) from None
    return document
