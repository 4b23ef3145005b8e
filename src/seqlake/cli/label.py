"""`seqlake label`: fill a column, from SQL, with one value, or from a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seqlake.cli import _options, _values

if TYPE_CHECKING:
    import pyarrow as pa


@click.command()
@_options.source
@click.argument("column", required=False, shell_complete=_options.complete_columns)
@click.argument("value", required=False)
@click.option("--sql", metavar="EXPRESSION", help="Computed from the other columns of each row.")
@click.option(
    "--csv",
    "table",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A CSV file with a column sequence_id and one or more columns of labels.",
)
@_options.rows
@_options.commits
def command(
    source: str,
    column: str | None,
    value: str | None,
    *,
    sql: str | None,
    table: Path | None,
    choice: _options.Choice,
    dry_run: bool,
    output: _options.Output,
) -> None:
    """Put labels into COLUMN of DATASET, which is added if it is not there: VALUE, --sql or --csv.

    VALUE is given to the sequences that --where or --ids choose, or to all; other sequences keep what they had, null in
    a new column. No temporal byte is rewritten where the column was added after the shards were written.

    Example: seqlake label data/arm good --sql "reward > 40 AND len(action) > 100"
    """
    from seqlake.dataset.changing.evolving import computed, label

    if sum(one is not None for one in (value, sql, table)) != 1:
        raise click.UsageError("Give one of: a VALUE, --sql, or --csv.")
    if column is None and table is None:
        raise click.UsageError("Name the COLUMN that is filled.")
    if table is not None and not choice.everything:
        raise click.UsageError("--csv names its sequences itself; leave --where and --ids out.")
    dataset = _options.opened_dataset(source)
    if table is not None:
        labels = _read(table, dataset, column)
    else:
        chosen = choice.of(dataset)
        assert column is not None
        labels = (
            _same(chosen, dataset, column, str(value))
            if sql is None
            else computed(chosen, column, sql, dataset.schema.get(column))
        )
    names = [name for name in labels.column_names if name != dataset.schema.id]
    added = [name for name in names if name not in dataset.schema]
    facts: dict[str, Any] = {"rows": labels.num_rows, "columns": names, "added": added, "dry_run": dry_run}
    what = f"{labels.num_rows} sequences in {', '.join(names)}" + (f" (new: {', '.join(added)})" if added else "")
    version = dataset.version
    with (
        _options.rehearsed(dry_run),
        _options.sequences(dataset, labels.column(str(dataset.schema.id)).to_pylist()),
    ):
        version = label(dataset, labels) if labels.num_rows or added else version
    if dry_run:
        output.document(facts, text=f"Would label {what}.")
        return
    output.document({**facts, "version": version.id}, text=f"Labelled {what}; version {version.id}.")


def _same(chosen: Any, dataset: Any, column: str, text: str) -> pa.Table:
    import pyarrow as pa

    key = chosen.schema.id
    known = dataset.schema.get(column)
    value = _values.guessed(text) if known is None else _values.cell_of(text, known)
    ids = chosen.select(key).to_arrow().column(0)
    kind = None if known is None else known.logical
    return pa.table({key: ids, column: pa.array([value] * len(ids), kind)})


def _read(path: Path, dataset: Any, column: str | None) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    key = str(dataset.schema.id)
    known = {name: one.arrow for name, one in dataset.schema.items() if one.category in {"scalar", "file"}}
    try:
        table = csv.read_csv(
            path, convert_options=csv.ConvertOptions(column_types={**known, key: pa.string()}, strings_can_be_null=True)
        )
    except pa.ArrowInvalid as error:
        raise click.UsageError(f"{path} cannot be read: {error}.") from None
    if key not in table.column_names or (column is not None and column not in table.column_names):
        wanted = f"{key}, {column}" if column is not None else key
        raise click.UsageError(f"{path} needs the columns {wanted}; found {', '.join(table.column_names)}.")
    return table if column is None else table.select([key, column])
