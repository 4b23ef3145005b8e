"""`seqlake bench`: how fast a dataset trains on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options, size
from seqlake.errors import in_line
from seqlake.spec.alignment import clock_of, on_clock

if TYPE_CHECKING:
    from seqlake.spec.schema import Schema
    from seqlake.training.loader import Loader


@click.command()
@_options.source
@_options.columns_option("Which signals (default: all that a clock relates).")
@click.option("--window", "steps", type=click.IntRange(min=1), default=16, show_default=True, help="Steps a window.")
@click.option("--stride", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="How long to run.")
@_options.where
@output_options
def command(
    source: str,
    *,
    columns: list[str] | None,
    steps: int,
    stride: int,
    batch_size: int,
    seconds: float,
    where: str | None,
    output: Output,
) -> None:
    """Stream shuffled windows of DATASET for some seconds and compare with copying memory.

    The dataset is only read. Figures of a busy or cold machine are low: run it twice.
    """
    from seqlake.training.loader import Loader
    from seqlake.windows.spec import Window

    selection = _options.opened(source, where=where)
    schema = selection.schema
    names = columns or _signals(schema)
    if not names:
        raise click.UsageError(
            f"Windows are of signals, and {in_line(source)} has none with a step for each of the clock; "
            "`seqlake convert --sequence-id COLUMN --steps COLUMN` makes sequences of samples."
        )
    spec = Window({name: range(steps) for name in names}, stride=stride)
    loader = Loader(selection, window=spec, batch_size=batch_size, shuffle=True, seed=0)
    plan = loader.plan()
    facts: dict[str, Any] = {
        "columns": names,
        "window": steps,
        "batch_size": batch_size,
        **_run(loader, names, seconds),
    }
    facts["memcpy_bytes_per_second"] = _memcpy()
    facts["of_memcpy"] = round(facts["bytes_per_second"] / facts["memcpy_bytes_per_second"], 3)
    text = (
        f"{plan}\n\n{facts['windows_per_second']:,} windows/s, {size(facts['bytes_per_second'])}/s: "
        f"{facts['of_memcpy']:.2f} of copying memory\n"
        f"first batch after {facts['first_batch_seconds']:.3f} s\n\n{loader.report()}"
    )
    output.document(facts, text=text)


def _signals(schema: Schema) -> list[str]:
    """All temporal columns; those with times of their own only where a clock relates them to the others."""
    temporal = [name for name in schema if schema[name].category == "temporal"]
    clocked = clock_of(schema).rate is not None
    return [name for name in temporal if clocked or on_clock(schema, name, None)]


_SHOWN = 0.2  # seconds between two looks at the progress


def _run(loader: Loader, names: list[str], seconds: float) -> dict[str, Any]:
    from seqlake.dataset.progress import timing

    began = time.perf_counter()
    windows = nbytes = batch_nbytes = 0
    warm = now = reported = began
    with timing(seconds, "streaming") as show:
        while now - began < seconds:
            for batch in loader:
                now = time.perf_counter()
                if not batch_nbytes:
                    warm = now
                    batch_nbytes = sum(batch[name].nbytes for name in names)
                    continue
                windows += len(batch["start"])
                nbytes += sum(batch[name].nbytes for name in names)
                if now - reported > _SHOWN:
                    reported = now
                    show(now - began, f"{windows / (now - warm):,.0f} windows/s, {size(nbytes / (now - warm))}/s")
                if now - began >= seconds:
                    break
            if not batch_nbytes:
                raise click.ClickException("Not one full batch: choose a smaller --batch-size.")
    spent = time.perf_counter() - warm
    report = loader.report()
    return {
        "windows": windows,
        "windows_per_second": round(windows / spent),
        "bytes_per_second": round(nbytes / spent),
        "first_batch_seconds": round(warm - began, 4),
        "batch_nbytes": batch_nbytes,
        "wait_share": round(report.wait_share, 3),
        "stages": {name: round(spent, 4) for name, spent in report.stages.items()},
        "bytes_by_origin": dict(report.nbytes),
        "frames_per_second": round(report.frames_per_second),
    }


def _memcpy() -> int:
    """Bytes a second of copying memory that no cache holds, on one thread."""
    import numpy as np

    source = np.ones(128 << 20, np.uint8)
    target = np.zeros_like(source)
    copied, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < 0.5:
        np.copyto(target, source)
        copied += source.nbytes
    return round(copied / spent)
