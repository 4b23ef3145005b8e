"""Tables that other writers made, in each home that a dataset may have: nothing in them is ours but the property."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import seqlake as sl

HOMES = ("standalone", "delta", "iceberg", "ducklake")


def make(home: str, folder: Path, table: pa.Table, mixtrain: str) -> str:
    """A table with the metadata where the home keeps them; where it lies, for `sl.open`.

    Args:
        home: Of `HOMES`.
        folder: An empty one.
        table: Its rows.
        mixtrain: The JSON text, as it is to be written.
    """
    folder.mkdir(parents=True)
    return {"standalone": _files, "delta": _delta, "iceberg": _iceberg, "ducklake": _ducklake}[home](
        folder, table, mixtrain
    )


def _files(folder: Path, table: pa.Table, mixtrain: str) -> str:
    (folder / "data").mkdir()
    pq.write_table(table, folder / "data" / "part-00000.parquet")
    (folder / "mixtrain.json").write_text(mixtrain, encoding="utf-8")
    return str(folder)


def _delta(folder: Path, table: pa.Table, mixtrain: str) -> str:
    import deltalake

    deltalake.write_deltalake(str(folder), table)
    found = deltalake.DeltaTable(str(folder))
    found.alter.set_table_properties({"mixtrain": mixtrain}, raise_if_not_exists=False)
    return f"delta:{folder}"


def _iceberg(folder: Path, table: pa.Table, mixtrain: str) -> str:
    from pyiceberg.catalog.sql import SqlCatalog

    # Where `iceberg:FOLDER/ns.table` looks for a catalog.
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("rl")
    catalog.create_table("rl.t", table.schema, properties={"mixtrain": mixtrain}).append(table)
    return f"iceberg:{folder}/rl.t"


def _ducklake(folder: Path, table: pa.Table, mixtrain: str) -> str:
    place = f"ducklake:{folder}/meta.duckdb?table=t"
    spec = importlib.util.find_spec("duckdb_extension_ducklake")
    if spec is None or not spec.submodule_search_locations:  # no wheel brought the extension: made by our own writer
        schema = sl.Schema.from_arrow(table.schema, metadata=sl.Metadata.parse(mixtrain))
        with sl.create(place, schema).writer() as writer:
            writer.add_batch(table)
        return place
    (wheel,) = spec.submodule_search_locations
    connection = duckdb.connect(":memory:")
    connection.execute(f"LOAD '{wheel}/extensions/v{duckdb.__version__}/ducklake.duckdb_extension'")
    connection.execute(f"ATTACH 'ducklake:{folder}/meta.duckdb' AS lake (DATA_PATH '{folder}/meta.duckdb.files')")
    connection.register("rows", table)
    connection.execute("CREATE TABLE lake.main.t AS SELECT * FROM rows")
    text = mixtrain.replace("'", "''")
    connection.execute(f"COMMENT ON TABLE lake.main.t IS '{text}'")
    connection.close()
    return place
