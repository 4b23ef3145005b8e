"""`seqlake split`: assign train, validation and test, or write one dataset per split."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from seqlake.cli import _options


def _shares(text: str) -> dict[str, float]:
    shares = {}
    for part in text.split(","):
        name, separator, share = part.partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            separator = ""
        if not separator:
            raise click.UsageError(f"--shares wants NAME=SHARE,..., as in train=0.8,val=0.1,test=0.1; got {text!r}.")
    return shares


@click.command()
@_options.source
@click.argument("out", required=False, shell_complete=_options.complete_paths)
@click.option("--shares", default="train=0.8,val=0.1,test=0.1", show_default=True, help="Names and their shares.")
@click.option(
    "--group",
    metavar="COLUMN",
    shell_complete=_options.complete_columns,
    help="Sequences with one value of this column stay together.",
)
@click.option(
    "--stratify",
    metavar="COLUMN",
    shell_complete=_options.complete_columns,
    help="Each value of this column is split by the same shares.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--by",
    metavar="COLUMN",
    shell_complete=_options.complete_columns,
    default="split",
    show_default=True,
    help="With OUT: write one dataset for each value of this column.",
)
@_options.commits
def command(
    source: str,
    out: str | None,
    *,
    shares: str,
    group: str | None,
    stratify: str | None,
    seed: int,
    by: str,
    dry_run: bool,
    output: _options.Output,
) -> None:
    """Without OUT: assign each sequence of DATASET to a split and commit it as the column `split`.

    With OUT: write OUT/<value> for each value of the column --by.
    """
    from seqlake.dataset.reshaping.merging import split
    from seqlake.dataset.reshaping.splits import assign_splits, plan_splits
    from seqlake.dataset.writing.staging import open_for_changes

    wanted = _shares(shares)
    dataset = _options.opened_dataset(source)
    if out is not None:
        with _options.rehearsed(dry_run):
            counts = {name: len(part) for name, part in split(dataset, out, by=by).items()}
        if dry_run:
            values = Counter(map(str, dataset.select(by).to_arrow().column(by).to_pylist()))
            counts = {name: values[name] for name in sorted(values)}
    else:
        how: Any = {"group": group, "stratify": stratify, "seed": seed}
        if dry_run:
            counts = plan_splits(dataset, wanted, **how)
            with _options.rehearsed(dry_run):
                open_for_changes(dataset)
        else:
            assign_splits(dataset, wanted, **how)
            given = Counter(dataset.select("split").to_arrow().column(0).to_pylist())
            counts = {name: given[name] for name in wanted}
    text = "\n".join(f"{name}: {count} sequences" for name, count in counts.items())
    output.document({"splits": counts, "dry_run": dry_run}, text=text)
