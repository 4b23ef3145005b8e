"""DuckDB's own ducklake extension, in a process of its own with the DuckDB that the extension was built for.

Answers each line of JSON on its input with a line on its output: seconds on the clock and of the processor.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import duckdb

COLUMNS = "action, obs_state"


def connected(target: str) -> Any:
    """A session with the lake attached; the extensions come as wheels."""
    connection = duckdb.connect(":memory:")
    for name in ("ducklake", "sqlite_scanner"):
        (folder,) = importlib.util.find_spec(f"duckdb_extension_{name}").submodule_search_locations
        connection.execute(f"LOAD '{Path(folder, 'extensions', f'v{duckdb.__version__}', f'{name}.duckdb_extension')}'")
    connection.execute(f"ATTACH 'ducklake:{target}' AS lake")
    connection.execute("USE lake")
    return connection


def whole(connection: Any) -> None:
    """Both columns of all rows, as one table."""
    connection.execute(f"SELECT {COLUMNS} FROM arm").to_arrow_table()


def streamed(connection: Any) -> None:
    """Both columns of all rows, batch by batch."""
    for batch in connection.execute(f"SELECT {COLUMNS} FROM arm").to_arrow_reader(256):
        assert batch.num_rows


def windows(connection: Any, picks: list[list[Any]], width: int) -> None:
    """Windows (sequence id, first step), cut out by the engine."""
    values = ", ".join(f"('{name}', {start})" for name, start in picks)
    cut = ", ".join(f"list_slice({name}, s + 1, s + {width})" for name in COLUMNS.split(", "))
    sql = f"SELECT {cut} FROM arm JOIN (VALUES {values}) AS w (sequence_id, s) USING (sequence_id)"
    assert connection.execute(sql).to_arrow_table().num_rows == len(picks)


def commit(connection: Any, number: int) -> None:
    """One more row."""
    connection.execute(f"INSERT INTO arm (sequence_id, reward) VALUES ('b{number}', {number})")


def main() -> None:
    """Answer until the input ends."""
    connection = connected(sys.argv[1])
    calls = {"whole": whole, "streamed": streamed, "windows": windows, "commit": commit}
    for line in sys.stdin:
        name, *given = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        calls[name](connection, *given)
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)


if __name__ == "__main__":
    main()
