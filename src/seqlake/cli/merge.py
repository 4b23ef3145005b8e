"""`seqlake merge`: join several datasets into a new one."""

from __future__ import annotations

import click

from seqlake.cli import _options
from seqlake.cli._overwriting import replacing


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="DATASET...", shell_complete=_options.complete_paths)
@_options.out
@click.option("--union", is_flag=True, help="Schemas may differ: a column that a dataset lacks is null there.")
@click.option("--rename", "renames", multiple=True, metavar="OLD=NEW", help="A column's name in OUT. Repeatable.")
@click.option(
    "--prefix", "prefixes", multiple=True, metavar="TEXT", help="Put before ids; once for each DATASET, in their order."
)
@_options.writes
def command(
    sources: tuple[str, ...],
    out: str,
    *,
    union: bool,
    renames: tuple[str, ...],
    prefixes: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    output: _options.Output,
) -> None:
    """Join the sequences of several DATASETs into a new dataset at OUT."""
    from seqlake.dataset.reshaping.merging import merge

    if len(prefixes) not in {0, len(sources)}:
        raise click.UsageError(f"Expected --prefix once for each of {len(sources)} datasets, found {len(prefixes)}.")
    columns = dict(one.partition("=")[::2] for one in renames)
    if not all(columns) or not all(columns.values()):
        raise click.UsageError("Expected --rename OLD=NEW.")
    parts = [_options.opened(source, asks=False) for source in sources]
    with replacing(out, overwrite=overwrite, sources=sources, dry_run=dry_run) as place:
        merged = merge(parts, place, union=union, columns=columns, prefixes=prefixes)
        text = f"{len(merged)} sequences of {len(parts)} datasets at {out}."
        output.document({"rows": len(merged), "out": out}, text=text)
    if dry_run:
        output.plan(sum(map(len, parts)), out, what=f"sequences of {len(parts)} datasets")
