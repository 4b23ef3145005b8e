"""Ctrl-C while DuckDB answers for a catalog: it is Ctrl-C, and no damage."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.tables._lakes.damage import as_damage
from seqlake.tables.ducklake import catalogs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.01, 0.3])
def test_ctrl_c_into_a_query_of_the_catalog(tmp_path: Path, seconds: float) -> None:
    """DuckDB 2.0 loses one that comes while it plans."""
    ds = sl.create(f"ducklake:{tmp_path}/meta.duckdb?table=t", sl.Schema({"n": pa.int64()}))
    catalog = catalogs.catalog(ds.table.engine.address)  # type: ignore[attr-defined]  # of a lake
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), as_damage("ds"), catalog.reading() as session:
        timer.start()
        session.rows("SELECT count(*) FROM range(1000000000000) a WHERE hash(a.range) = 1")
    timer.join()
    assert ds.append([{"sequence_id": "a"}]).rows == 1
