"""The catalog's database: one transaction to read in, one to write in, the same SQL for all three kinds.

DuckLake's metadata are tables of plain types, so no extension is needed: the standard library speaks SQLite, DuckDB
is here anyway, and psycopg speaks to PostgreSQL. Booleans are 0 and 1 in SQLite, and times are text there.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import tempfile
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from seqlake import plugins
from seqlake.errors import (
    CommitConflictError,
    CommitUnknownError,
    DatasetNotFoundError,
    ReadOnlyError,
    SeqlakeError,
    UnsafeReferenceError,
)
from seqlake.files import sandbox
from seqlake.files.room import without_room
from seqlake.tables._lakes.engine import RivalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from seqlake.tables.ducklake.address import DuckLakeAddress

_Made = TypeVar("_Made")
_PATIENCE = 60.0  # seconds that a writer waits for those before it
_TRIES = 20
_PROBE = 1 << 16  # bytes
_NAME = re.compile("[a-z0-9_]+")
_STORAGE = "v1.0.0"  # of new DuckDB files: DuckDB 2 reads and writes them, and so does every 1.x
_SHORT_PATIENCE = 3.0  # for a DuckDB file, which another process may keep open for good

_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"


class Session:
    """One transaction; parameters are written `?` for every database."""

    def __init__(self, connection: Any, kind: str, /) -> None:
        self._connection = connection
        self.kind = kind

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What a query finds."""
        cursor = self._connection.execute(self._spelled(sql), self._plain(parameters))
        return [tuple(row) for row in cursor.fetchall()]

    def run(self, sql: str, *parameters: object) -> None:
        """Execute a statement that gives no rows."""
        self._connection.execute(self._spelled(sql), self._plain(parameters))

    def insert(self, table: str, rows: Iterable[Sequence[object]], /) -> None:
        """Add rows to a table, values in the order of its columns."""
        listed = [self._plain(row) for row in rows]
        if listed:
            sql = f"INSERT INTO {table} VALUES ({', '.join('?' * len(listed[0]))})"
            cursor = self._connection.cursor() if self.kind == "postgres" else self._connection
            cursor.executemany(self._spelled(sql), listed)

    def tables(self, prefix: str, /) -> set[str]:
        """The names of the catalog's tables that begin so."""
        if self.kind == "sqlite":
            sql = "SELECT name FROM sqlite_master WHERE type = 'table'"
        else:
            sql = f"{_TABLES} AND table_type = 'BASE TABLE'"
        # Names become SQL, so whoever made the catalog may not choose just any.
        return {name for (name,) in self.rows(sql) if name.startswith(prefix) and _NAME.fullmatch(name)}

    def _spelled(self, sql: str) -> str:
        return sql.replace("%", "%%").replace("?", "%s") if self.kind == "postgres" else sql

    def _plain(self, parameters: Iterable[object]) -> list[object]:
        if self.kind != "sqlite":
            return list(parameters)
        return [int(value) if isinstance(value, bool) else value for value in parameters]


class Catalog(Protocol):
    """A database of one of the three kinds; picklable, opened anew for each transaction."""

    def exists(self) -> bool:
        """Whether it holds a DuckLake."""

    def reading(self) -> AbstractContextManager[Session]:
        """A transaction that sees one state of the catalog."""

    def writing(self, *, make: bool = False) -> AbstractContextManager[Session]:
        """A transaction that no other writer's comes between; committed at its end, undone by an error.

        Raises:
            RivalError: Try again.
            ReadOnlyError: The catalog cannot be written.
        """


def catalog(address: DuckLakeAddress, /) -> Catalog:
    """The catalog of an address; nothing is opened."""
    if address.kind == "sqlite":
        return SqliteCatalog(address)
    return PostgresCatalog(address) if address.kind == "postgres" else DuckdbCatalog(address)


def retried(make: Callable[[], _Made], /) -> _Made:
    """What a writing transaction gives, made anew while others are faster.

    Raises:
        CommitConflictError: They were, every time.
    """
    for turn in range(_TRIES):
        try:
            return make()
        except RivalError:
            time.sleep(random.uniform(0, 0.02 * (turn + 1)))  # noqa: S311 - rivals must not wait in step
    raise CommitConflictError(
        f"Not committed: other writers were faster {_TRIES} times.",
        hint="Try again when fewer write at once.",
    )


class _Catalog:
    def __init__(self, address: DuckLakeAddress, /) -> None:
        self.address = address

    def _missing(self) -> DatasetNotFoundError:
        return DatasetNotFoundError(
            f"Expected a DuckLake catalog at {self.address}, found none.",
            path=str(self.address),
            hint="`sl.create` makes one; check the path and the kind (sqlite:, postgres:).",
        )


class _FileCatalog(_Catalog):
    def reading(self) -> AbstractContextManager[Session]:
        raise NotImplementedError

    def exists(self) -> bool:
        """Whether it holds a DuckLake."""
        if not Path(self.address.target).exists():
            return False
        with self.reading() as session:
            return "ducklake_snapshot" in session.tables("ducklake_")


class SqliteCatalog(_FileCatalog):
    """A catalog in an SQLite file: any number of processes of one machine."""

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One state of the catalog."""
        with self._opened("BEGIN") as connection:
            yield Session(connection, "sqlite")

    @contextmanager
    def writing(self, *, make: bool = False) -> Iterator[Session]:
        """One writer at a time: SQLite locks the file when the transaction begins."""
        with self._opened("BEGIN IMMEDIATE", make=make) as connection:
            yield Session(connection, "sqlite")

    @contextmanager
    def _opened(self, begin: str, *, make: bool = False) -> Iterator[sqlite3.Connection]:
        path = Path(self.address.target)
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise self._missing()
        connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute(begin)
            _refuse_views(Session(connection, "sqlite"), self.address)
            yield connection
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            known = _sqlite_error(error, self.address)
            if known is None:
                raise
            raise known from _refusal(path) if _is_refused(error) else error
        finally:
            with suppress(sqlite3.Error):  # what it was undone for says more
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            connection.close()


def _is_refused(error: sqlite3.Error) -> bool:
    """Whether the system refused SQLite to read or write, for a reason that SQLite keeps for itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR


def _refusal(path: Path) -> OSError | None:
    """What the system says of one more file beside the catalog: a quota that is used up is a full disk."""
    try:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(bytes(_PROBE))
    except OSError as error:
        return error
    return None


def _sqlite_error(error: sqlite3.Error, address: DuckLakeAddress) -> Exception | None:
    text = str(error)
    if _is_refused(error):
        return SeqlakeError(
            f"The system refused to read or write {address} ({text}); SQLite does not say why.",
            path=address.target,
            hint="Look for a quota that is used up, a limit on the size of files, or a failing disk; then try again.",
        )
    if "locked" in text or "busy" in text:
        return CommitConflictError(
            f"Not committed: other writers held {address} for {_PATIENCE:.0f} seconds.",
            path=address.target,
            hint="Try again; many writers at once are served better by PostgreSQL.",
        )
    if "readonly" in text or "unable to open" in text:
        return ReadOnlyError(f"{address} cannot be opened for this: {text}.", path=address.target)
    if "not a database" in text:
        return DatasetNotFoundError(
            f"Expected an SQLite file at {address}, found something else.",
            path=address.target,
            hint="A DuckDB file is written without `sqlite:`.",
        )
    if "no such table: ducklake_metadata" in text:
        return DatasetNotFoundError(
            f"Expected a DuckLake catalog at {address}, found an SQLite file without one.",
            path=address.target,
            hint="`sl.create` makes one in it; check the path.",
        )
    return None


class DuckdbCatalog(_FileCatalog):
    """A catalog in a DuckDB file: one process at a time while it writes."""

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One state of the catalog; several processes may read."""
        with self._opened(read_only=True) as connection:
            yield Session(connection, "duckdb")

    @contextmanager
    def writing(self, *, make: bool = False) -> Iterator[Session]:
        """The file is locked while it is open."""
        import duckdb

        if make:
            Path(self.address.target).parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._opened(read_only=False, make=make) as connection:
                yield Session(connection, "duckdb")
        except (duckdb.TransactionException, duckdb.ConstraintException) as error:
            if without_room(error) is not None:  # a commit that failed for it is called a transaction's failure, too
                raise
            raise RivalError(str(error)) from error

    @contextmanager
    def _opened(self, *, read_only: bool, make: bool = False) -> Iterator[Any]:
        import duckdb

        if not make and not Path(self.address.target).exists():
            raise self._missing()
        connection = self._connected(read_only=read_only)
        try:
            with sandbox.ctrl_c(connection):
                connection.execute("BEGIN")
                _refuse_views(Session(connection, "duckdb"), self.address)
                yield connection
                connection.execute("COMMIT")
        except duckdb.PermissionException as error:
            raise UnsafeReferenceError(
                f"{self.address}: the catalog's own SQL tried to reach outside of it ({str(error).splitlines()[0]}).",
                path=self.address.target,
                hint="No DuckLake has such SQL; do not use this catalog unless you know why it does.",
            ) from error
        finally:
            connection.close()

    def _connected(self, *, read_only: bool) -> Any:
        import duckdb

        path, until = self.address.target, time.monotonic() + _SHORT_PATIENCE
        config: dict[str, Any] = {} if Path(path).exists() else {"storage_compatibility_version": _STORAGE}
        while True:
            try:
                return sandbox.connect(path, read_only=read_only, utc=True, **config)
            except duckdb.Error as error:
                text = str(error)
                if without_room(error) is not None:
                    raise
                if not read_only and not os.access(path if Path(path).exists() else Path(path).parent, os.W_OK):
                    raise ReadOnlyError(f"{self.address} cannot be written.", path=path) from error
                held = "lock" in text or "different configuration" in text or "already attached" in text
                if "version number" in text:
                    raise SeqlakeError(
                        f"{self.address}: {text.splitlines()[0]}", hint="Install a newer DuckDB."
                    ) from error
                if not held:
                    raise DatasetNotFoundError(
                        f"Expected a DuckDB file at {self.address}, found something else ({text.splitlines()[0]}).",
                        path=path,
                        hint="Catalogs in other databases are written `sqlite:` or `postgres:`.",
                    ) from error
                if time.monotonic() > until:
                    raise self._held(read_only=read_only) from error
            time.sleep(random.uniform(0.01, 0.1))  # noqa: S311 - rivals must not wait in step

    def _held(self, *, read_only: bool) -> SeqlakeError:
        kind = SeqlakeError if read_only else ReadOnlyError
        return kind(
            f"{self.address} is open for writing elsewhere: in another process, or in another DuckDB session of this "
            "one. A DuckDB file serves one at a time.",
            path=self.address.target,
            hint="Close it there; a catalog in SQLite or PostgreSQL serves many.",
        )


class PostgresCatalog(_Catalog):
    """A catalog in PostgreSQL: any number of processes anywhere."""

    def exists(self) -> bool:
        """Whether it holds a DuckLake."""
        with self._opened("READ ONLY") as connection:
            return "ducklake_snapshot" in Session(connection, "postgres").tables("ducklake_")

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One state of the catalog."""
        with self._opened("ISOLATION LEVEL REPEATABLE READ READ ONLY") as connection:
            yield Session(connection, "postgres")

    @contextmanager
    def writing(self, *, make: bool = False) -> Iterator[Session]:
        """One of our writers at a time; one of DuckDB's that began before is a rival."""
        with self._opened("ISOLATION LEVEL READ COMMITTED", make=make) as connection:
            if not make:
                connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE:.0f}s'")
                # Held against other writers, DuckDB's inserts included; readers go on.
                connection.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
            yield Session(connection, "postgres")

    @contextmanager
    def _opened(self, mode: str, *, make: bool = False) -> Iterator[Any]:
        psycopg = plugins.require("psycopg", extra="ducklake")
        try:
            connection = psycopg.connect(self.address.target, autocommit=True)
        except psycopg.Error as error:
            raise DatasetNotFoundError(
                f"Expected a DuckLake catalog at {self.address}, found no connection: {error}".rstrip(),
                path=str(self.address),
            ) from error
        try:
            connection.execute("SET timezone = 'UTC'")
            if self.address.metadata_schema is not None:
                quoted = '"' + self.address.metadata_schema.replace('"', '""') + '"'
                if make:
                    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
                connection.execute(f"SET search_path = {quoted}")
            connection.execute(f"BEGIN TRANSACTION {mode}")
            _refuse_views(Session(connection, "postgres"), self.address)
            yield connection
            self._commit(connection, psycopg)
        except psycopg.Error as error:
            known = self._translated(error, psycopg)
            if known is None:
                raise
            raise known from error
        finally:
            with suppress(psycopg.Error):
                connection.close()

    def _commit(self, connection: Any, psycopg: Any) -> None:
        try:
            connection.execute("COMMIT")
        except psycopg.OperationalError as error:
            if not connection.closed:
                raise
            raise CommitUnknownError(
                f"{self.address}: the connection was lost while a commit was under way. It may have been made.",
                path=str(self.address),
                hint="`ds.versions()` shows whether it was; look before you commit the same rows again.",
            ) from error

    def _translated(self, error: Exception, psycopg: Any) -> Exception | None:
        errors = psycopg.errors
        if isinstance(error, errors.UniqueViolation | errors.SerializationFailure | errors.DeadlockDetected):
            return RivalError(str(error))
        if isinstance(error, errors.UndefinedTable):
            return self._missing()
        if isinstance(error, errors.LockNotAvailable):
            return CommitConflictError(
                f"Not committed: another session held {self.address} for {_PATIENCE:.0f} s.",
                path=str(self.address),
                hint="Try again; pg_stat_activity shows whose transaction is open.",
            )
        if isinstance(error, errors.InsufficientPrivilege | errors.ReadOnlySqlTransaction):
            return ReadOnlyError(f"{self.address} cannot be written: {error}".rstrip(), path=str(self.address))
        return None


def moment(text: str, /) -> datetime:
    """A time as the catalogs write it."""
    read = datetime.fromisoformat(text.strip())
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)


def text_of(time_: datetime, /) -> str:
    """A time as DuckLake's clients write it."""
    return time_.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00")


def _refuse_views(session: Session, address: DuckLakeAddress, /) -> None:
    """Refuse a catalog where one of DuckLake's tables is a view or has a trigger: SQL that its maker would run here.

    Raises:
        SeqlakeError: Names them.
    """
    if session.kind == "sqlite":
        sql = (
            "SELECT name FROM sqlite_master WHERE tbl_name LIKE 'ducklake%' AND (type IN ('view', 'trigger') OR "
            "(type = 'table' AND sql LIKE 'create virtual%'))"
        )
    else:
        sql = f"{_TABLES} AND table_type <> 'BASE TABLE' AND lower(table_name) LIKE 'ducklake%'"
    views = sorted(name for (name,) in session.rows(sql))
    if views:
        raise SeqlakeError(
            f"{address}: expected plain tables, found views or triggers: {', '.join(map(repr, views[:5]))}.",
            path=address.target,
            hint="No DuckLake has these; do not use this catalog unless you know why it does.",
        )
