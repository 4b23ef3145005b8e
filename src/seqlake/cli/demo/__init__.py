"""`seqlake demo`: what it does, step after step, and how fast each was."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seqlake.cli._output import Output, output_options, size

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW = 16


@click.command()
@click.argument("out", required=False, type=click.Path(path_type=Path))
@click.option("--episodes", type=click.IntRange(min=6), default=24, show_default=True, help="How many to simulate.")
@click.option("--from", "rlds", metavar="PATH", help="Take an RLDS folder instead of the simulated arm.")
@output_options
def command(out: Path | None, *, episodes: int, rlds: str | None, output: Output) -> None:
    """See seqlake work, in well under a minute, with no network and no extra package.

    A small arm is simulated and filmed by two cameras; its episodes are recorded step by step (and a recording is
    killed on the way), validated, queried in SQL, split, summed up, streamed as shuffled training windows with and
    without frames, and drawn. OUT must be new or empty; the default is the first free folder below ./demo-output.
    """
    from seqlake.cli.demo import _steps

    folder = out or _free_folder()
    start = time.perf_counter()
    facts: dict[str, Any] = {"out": str(folder)}

    def step(title: str, work: Callable[[], tuple[str, dict[str, Any]]]) -> None:
        began = time.perf_counter()
        text, learnt = work()
        seconds = time.perf_counter() - began
        facts.update(learnt)
        if output.format != "json":
            click.echo(click.style(f"● {title}", bold=True) + f"  ({seconds:.1f} s)")
            click.echo("".join(f"    {line}\n" for line in text.splitlines()))

    data = folder / "dataset"
    if rlds:
        step("convert", lambda: _steps.convert_rlds(rlds, data))
    else:
        step("simulate and record", lambda: _steps.record_arm(data, episodes))
        step("kill a recording", lambda: _steps.kill_writer(data))
    step("validate", lambda: _steps.check(data))
    step("query", lambda: _steps.query(data))
    step("split", lambda: _steps.assign(data))
    step("statistics", lambda: _steps.summarise(data))
    step("train", lambda: _steps.train(data, WINDOW))
    step("draw", lambda: _steps.draw(data, folder))
    nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    facts |= {"seconds": round(time.perf_counter() - start, 2), "nbytes": nbytes}
    output.document(
        facts,
        text=f"{folder}: {size(nbytes)} in {facts['seconds']:.1f} s. Look around:\n"
        f"    seqlake info {data}\n    seqlake show {data} {facts['first_id']}\n"
        f'    seqlake sql {data} "SELECT * EXCLUDE (action) FROM dataset LIMIT 5"',
    )


def _free_folder() -> Path:
    number = 1
    while (folder := Path("demo-output") / str(number)).exists():
        number += 1
    return folder
