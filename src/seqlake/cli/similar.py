"""`seqlake similar`: the sequences whose embeddings are nearest to that of one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from seqlake.cli import _options, _remote
from seqlake.cli._output import Output, output_options

if TYPE_CHECKING:
    from seqlake.dataset.similarity import Metric


@click.command()
@_options.source
@click.argument("sequence_id", shell_complete=_options.complete_ids)
@click.option("--by", required=True, metavar="COLUMN", shell_complete=_options.complete_columns, help="The vectors.")
@click.option("-k", "count", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@click.option(
    "--metric", type=click.Choice(["cosine", "dot", "l2"]), default="cosine", show_default=True, help="What near means."
)
@_options.where
@_options.version
@output_options
def command(
    source: str,
    sequence_id: str,
    *,
    by: str,
    count: int,
    metric: Metric,
    where: str | None,
    version: int | str | None,
    output: Output,
) -> None:
    """List the sequences of DATASET whose vectors are nearest to that of SEQUENCE_ID, the nearest first.

    With --where only these are searched; -q prints ids only.
    """
    from seqlake.dataset.similarity import nearest, vector_of

    selection = _options.opened(source, version=version)
    _remote.permit_rows(source, selection)
    searched = selection.where(where) if where else selection
    like = vector_of(selection, by, sequence_id)
    near = [one for one in nearest(searched, by, like, k=count + 1, metric=metric) if one.sequence_id != sequence_id]
    output.rows([asdict(one) for one in near[:count]], key="sequence_id", columns=["sequence_id", "score"])
