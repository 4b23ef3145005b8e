"""`seqlake push`: upload a dataset to the Hugging Face Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.conversion.pushing import Push


@click.command()
@click.argument("source", metavar="DATASET", shell_complete=_options.complete_paths)
@click.argument("out", metavar="HUB")
@click.option("--private/--public", default=None, help="Of a dataset that is made (default: as the account has it).")
@click.option("--license", metavar="NAME", help="For the card, as in cc-by-4.0.")
@click.option("--task", "tasks", metavar="NAME", multiple=True, help="A task category for the card. Repeatable.")
@click.option("--card/--no-card", default=None, help="Write README.md anew, or none (default: where there is none).")
@_options.commits
def command(
    source: str,
    out: str,
    *,
    private: bool | None,
    license: str | None,  # noqa: A002 - the option's name
    tasks: Sequence[str],
    card: bool | None,
    dry_run: bool,
    output: Output,
) -> None:
    """Upload the files of DATASET to HUB, hf://datasets/owner/name or with @branch, in one commit.

    Of a Mixtrain dataset these are mixtrain.json, the shards of its newest version and the files that rows name; a
    folder of another format goes as it is. What is there already is not sent again. Log in with `hf auth login`.
    """
    from seqlake.conversion.pushing import push

    done = push(
        source,
        out,
        private=private,
        license=license,
        tasks=tasks,
        card=card,
        progress=output.progress,
        dry_run=dry_run,
    )
    output.document(done.to_json(), text=_text(done))


def _text(done: Push) -> str:
    much = f"{len(done.files)} files, {size(done.nbytes)}"
    gone = f"; {len(done.removed)} that are no longer part of it are removed" if done.removed else ""
    card = "" if done.card is None else ", and a card"
    if done.commit is None:
        new = " (new)" if done.created else ""
        return f"Would push {much}{card} to {done.url}{new}, branch {done.branch}{gone}."
    return f"Pushed {much}{card}{gone}: {done.url}\nOpen it with sl.open('{done.location}')."
