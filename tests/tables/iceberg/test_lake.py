"""Iceberg tables keep the laws of lakes: many writers at once, killed writers, files out of reach."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.catalog.sql import SqlCatalog

from seqlake.tables import iceberg
from seqlake.testing import lakes, tables
from seqlake.testing.oracle import crashes


@pytest.fixture
def place(tmp_path):
    return f"iceberg:{tmp_path}/warehouse/robots.episodes"


class TestIceberg(lakes.LakeTests):
    @pytest.fixture
    def table(self, place):
        return iceberg.create(place, tables.SCHEMA)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the writer that is killed")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_writer_killed_inside_the_catalogs_commit(when, place):
    """Its manifests, list and index lie there: the catalog alone says whether the commit was made."""
    table = iceberg.create(place, tables.SCHEMA)
    tables.append(table, ["there"])
    child = crashes.fork()
    if child == 0:
        real = SqlCatalog.commit_table

        def dies(*given, **named):
            if when == "after":
                real(*given, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        SqlCatalog.commit_table = dies
        tables.append(iceberg.open(place), ["killed"])
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    ids = {"there", *(["killed"] if when == "after" else [])}
    again = iceberg.open(place)
    assert set(tables.rows_of(again.snapshot())) == ids
    tables.append(again, ["afterwards"])
    again.vacuum(older_than=timedelta(0))
    assert set(tables.rows_of(iceberg.open(place).snapshot())) == {*ids, "afterwards"}
