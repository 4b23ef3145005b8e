"""DuckDB for SQL that others wrote: no file but its own, no network, no extension, and nothing that turns these on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

CLOSED: dict[str, Any] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""Without these a view or a default value in a stranger's file reads yours, and a name that is not known is looked for
on DuckDB's server."""


def connect(
    path: str | Path = ":memory:", /, *, read_only: bool = False, utc: bool = False, **settings: Any
) -> duckdb.DuckDBPyConnection:
    """A connection that is closed to everything outside, for good.

    Args:
        path: A database file; in memory by default.
        read_only: The file is not changed.
        utc: Times with a zone are shown in UTC, wherever this machine is.
        **settings: DuckDB's own, from the beginning: none can be changed later.

    Example:
        >>> connect().execute("SELECT 40 + 2").fetchone()
        (42,)
    """
    import duckdb

    connection = duckdb.connect(path, read_only=read_only, config={**CLOSED, **settings})
    try:
        if utc:
            connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection
