"""Any mixture of what DuckDB and seqlake do to one table reads the same through both, at every version."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.tables import ducklake
from seqlake.testing import tables
from seqlake.testing.tables import append, rows_of

from ...soak import SOAK  # noqa: TID252 - tests are no package that could be named

pytestmark = pytest.mark.engines

SEEDS = range(1, 13) if SOAK else [4]
STEPS = 14 if SOAK else 9


class Mixed:
    """Steps of either side, drawn from a seed."""

    def __init__(self, location, lake, seed):
        self.location, self.lake = location, lake
        self.draw = random.Random(seed)
        self.next = 0
        self.texts = "label"
        self.told = []

    def ids(self):
        return sorted(rows_of(sl.open(self.location).source))

    def some(self):
        ids = self.ids()
        return self.draw.sample(ids, min(len(ids), self.draw.randint(1, 3))) if ids else ["nobody"]

    def new(self, count):
        self.next += count
        return [f"n{number:03}" for number in range(self.next - count, self.next)]

    def listed(self):
        return ", ".join(f"'{one}'" for one in self.some())

    # ---- DuckDB
    def they_insert(self):
        for one in self.new(self.draw.choice([1, 3, 12])):
            self.lake.run(
                f"INSERT INTO episodes BY NAME SELECT '{one}' AS sequence_id, 1.5 AS reward, [[1, 2]] AS action"
            )

    def they_insert_at_once(self):
        first = self.next
        self.next += 15
        self.lake.run(
            "INSERT INTO episodes BY NAME SELECT 'n' || lpad(i::VARCHAR, 3, '0') AS sequence_id, i AS reward, "
            f"[[i, i]] AS action FROM range({first}, {self.next}) t(i)"
        )

    def they_delete(self):
        self.lake.run(f"DELETE FROM episodes WHERE sequence_id IN ({self.listed()})")

    def they_update(self):
        self.lake.run(f"UPDATE episodes SET reward = {self.draw.randint(0, 99)} WHERE sequence_id IN ({self.listed()})")

    def they_inline(self):
        limit = self.draw.choice([0, 10])
        self.lake.run(f"CALL lake.set_option('data_inlining_row_limit', {limit}, table_name => 'episodes')")

    def they_compact(self):
        self.lake.run(
            self.draw.choice(
                [
                    "CALL ducklake_merge_adjacent_files('lake')",
                    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)",
                    "CALL ducklake_flush_inlined_data('lake')",
                ]
            )
        )

    def they_alter(self):
        name = f"c{self.next}_{self.draw.randint(0, 999)}"
        statement = self.draw.choice(
            [f"ADD COLUMN {name} INTEGER DEFAULT 5", f"ADD COLUMN {name} FLOAT[][]", f"RENAME {self.texts} TO {name}"]
        )
        self.lake.run(f"ALTER TABLE episodes {statement}")
        self.texts = name if statement.startswith("RENAME") else self.texts

    # ---- seqlake
    def we_append(self):
        append(ducklake.open(self.location), self.new(self.draw.choice([1, 5])))

    def we_delete(self):
        sl.open(self.location).delete(ids=[one for one in self.some() if one != "nobody"] or None)

    def we_update(self):
        sl.open(self.location).update([{"sequence_id": one, "reward": 7.5} for one in self.some() if one != "nobody"])

    def we_roll_back(self):
        table = ducklake.open(self.location)
        table.rollback(self.draw.choice(list(table.versions())[-4:]))

    def we_alter(self):
        dataset = sl.open(self.location)
        name = f"d{self.next}_{self.draw.randint(0, 999)}"
        if self.draw.random() < 0.5:
            dataset.rename_column(self.texts, name)
            self.texts = name
        else:
            dataset.drop_column(self.texts)
            sl.open(self.location).add_column(self.texts, pa.string())

    def step(self):
        name = self.draw.choice([one for one in dir(self) if one.startswith(("they_", "we_"))])
        self.told.append(name)
        if name in {"we_delete", "we_update", "they_delete", "they_update"} and not self.ids():
            return
        getattr(self, name)()


def plain(rows):
    return {key: str(sorted(row.items())) for key, row in rows.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_both_sides_do_reads_the_same_through_both(seed, tmp_path, engine):
    location = f"ducklake:sqlite:{tmp_path}/lake.sqlite?table=episodes"
    ducklake.create(location, tables.SCHEMA)
    lake = engine(location)
    mixed = Mixed(location, lake, seed)
    for _ in range(STEPS):
        mixed.step()
        table = ducklake.open(location)
        assert plain(rows_of(table.snapshot())) == plain(lake.rows()), mixed.told
    table = ducklake.open(location)
    versions = table.versions()
    for version, truth in zip(versions, lake.rows_at([one.id for one in versions]), strict=True):
        found = rows_of(table.snapshot(version.id))
        assert plain(found) == plain(truth), (version, mixed.told)
        assert len(found) == version.rows, (version, mixed.told)
