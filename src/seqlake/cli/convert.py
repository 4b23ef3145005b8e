"""`seqlake convert`: turn any dataset that seqlake reads into another one."""

from __future__ import annotations

from pathlib import Path

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("out", metavar="DST")
@click.option("--to", metavar="FORMAT", help="What to write (default: a Mixtrain dataset).")
@click.option("--workers", type=click.IntRange(min=1), help="Processes (default: one per core).")
@click.option("--work", type=click.Path(path_type=Path), help="Where receipts lie, to go on after an interruption.")
@_options.where
@_options.dry_run
@output_options
def command(
    source: str,
    out: str,
    *,
    to: str | None,
    workers: int | None,
    work: Path | None,
    where: str | None,
    dry_run: bool,
    output: Output,
) -> None:
    """Convert SRC into DST. `import` and `export` are the same command.

    Run again after an interruption with the same --work, it goes on where it was.
    """
    from seqlake.conversion.convert import convert

    selection = _options.opened(source)
    if where:
        selection = selection.where(where)
    if dry_run:
        plan = convert(selection, out, to=to, workers=workers, work=work, dry_run=True)
        output.document(plan.to_json(), text=str(plan))
        return
    convert(selection, out, to=to, workers=workers, work=work, progress=output.progress)
    output.document({"rows": len(selection), "out": out}, text=f"{len(selection)} sequences at {out}.")
