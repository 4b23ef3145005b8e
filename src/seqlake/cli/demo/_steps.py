"""The demo's steps; each returns what to say and what was found."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    Told = tuple[str, dict[str, Any]]


def write_arm(path: Path, count: int) -> Told:
    """Simulate episodes and write them with the crash-safe writer."""
    import pyarrow as pa

    from seqlake.cli.demo import _arm
    from seqlake.dataset.opening import create
    from seqlake.spec.column_types import Trajectory
    from seqlake.spec.schema import Schema

    schema = Schema(
        {
            "task": pa.string(),
            "reward": pa.float32(),
            "success": pa.bool_(),
            "length": pa.int64(),
            "action": Trajectory(dim=3, units="N·m", fps=_arm.RATE),
            "obs_state": Trajectory(dim=8, fps=_arm.RATE),
        }
    )
    dataset = create(path, schema)
    steps = 0
    with dataset.writer(commit_every=max(1, count // 4)) as writer:
        for episode in _arm.episodes(count):
            steps += len(episode.action)
            writer.add(
                episode.sequence_id,
                task=episode.task,
                reward=episode.reward,
                success=episode.success,
                action=episode.action,
                obs_state=episode.obs_state,
            )
    version = dataset.versions()[-1]
    return (
        (
            f"{count} episodes, {steps} control steps of a three-joint arm at {_arm.RATE} Hz\n"
            f"committed as versions 1 to {version.id}; each commit is all or nothing"
        ),
        {"episodes": count, "steps": steps},
    )


_VICTIM = """
import sys
from seqlake.cli.demo import _arm
from seqlake.dataset.opening import open
with open(sys.argv[1]).writer(commit_every=1) as writer:
    for e in _arm.episodes(10_000, seed=1):
        writer.add("live_" + e.sequence_id, task=e.task, reward=e.reward, success=e.success,
                   action=e.action, obs_state=e.obs_state)
        print(e.sequence_id, flush=True)
"""


def kill_writer(path: Path) -> Told:
    """Kill a process that is writing, and look at what is left."""
    from seqlake.dataset.opening import open as open_dataset

    before = len(open_dataset(path))
    # The child imports what this process runs, wherever that was installed.
    victim = subprocess.Popen([sys.executable, "-c", _VICTIM, str(path)], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    written = 0
    for _ in victim.stdout:
        written += 1
        if written == 3:
            victim.kill()
            break
    written += len(victim.stdout.readlines())
    victim.wait()
    victim.stdout.close()
    dataset = open_dataset(path)
    kept = len(dataset) - before
    if kept < written:
        raise click.ClickException(f"{written} episodes were acknowledged, {kept} are there: please report this.")
    return (
        (
            f"a second process appended episodes one by one and was killed with SIGKILL after {written}\n"
            f"all {kept} that it had committed are there, nothing half-written is visible"
        ),
        {"killed_after": written, "kept": kept},
    )


def convert_rlds(source: str, path: Path) -> Told:
    """Turn an RLDS folder into a dataset."""
    from seqlake.conversion.convert import convert
    from seqlake.dataset.opening import open as open_dataset

    convert(source, path)
    dataset = open_dataset(path)
    return f"{len(dataset)} episodes from {source}\n{dataset!r}", {"episodes": len(dataset)}


def check(path: Path) -> Told:
    """Validate every row."""
    from seqlake.dataset.opening import open as open_dataset

    report = open_dataset(path).validate(depth="rows")
    lines = [f"{len(report.errors)} errors, {len(report.warnings)} warnings at depth rows"]
    return "\n".join([*lines, *map(str, list(report)[:5])]), {"errors": len(report.errors)}


def query(path: Path) -> Told:
    """Ask in SQL over the same files."""
    from seqlake.cli._output import shown, table
    from seqlake.dataset.opening import open as open_dataset

    dataset = open_dataset(path)
    key = next(n for n in ("task", "language_instruction", "sequence_id") if n in dataset.schema)
    signal = next(n for n in dataset.schema.names if dataset.schema[n].category == "temporal")
    text = (
        f'SELECT "{key}", count(*) AS episodes, sum(len("{signal}")) AS steps, '
        f'max(abs(list_extract("{signal}", 1)[1])) AS first FROM dataset GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 6'
    )
    result = dataset.sql(text).to_arrow_table()
    rows = [[shown(value) for value in row.values()] for row in result.to_pylist()]
    first = dataset.select("sequence_id").to_arrow().column(0)[0].as_py()
    return f"{text}\n\n{table(rows, head=result.column_names)}", {"first_id": first}


def assign(path: Path) -> Told:
    """Assign train and validation; the temporal bytes stay where they are."""
    from seqlake.dataset.opening import open as open_dataset
    from seqlake.dataset.splits import assign_splits

    dataset = open_dataset(path)
    assign_splits(dataset, {"train": 0.9, "val": 0.1})
    counts = dict(dataset.sql("SELECT split, count(*) FROM dataset GROUP BY 1 ORDER BY 1").fetchall())
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{said}; a column added beside the shards, no signal was rewritten", {"splits": counts}


def train(path: Path, window: int) -> Told:
    """Stream two shuffled epochs of windows, stop in the middle of one and go on."""
    import numpy as np

    from seqlake.dataset.opening import open as open_dataset
    from seqlake.training.loader import Loader
    from seqlake.windows.spec import Window

    source = open_dataset(path).where("split = 'train'")
    signals = [n for n in source.schema.names if source.schema[n].category == "temporal"]

    def loader() -> Loader:
        spec = Window({name: range(window) for name in signals})
        return Loader(source, window=spec, batch_size=256, shuffle=True, seed=0).tail("pad")

    began = time.perf_counter()
    first = loader()
    nbytes = windows = 0
    batches: list[tuple[Any, Any]] = []
    for _ in range(2):
        for batch in first:
            if not batches:
                # Importing and opening are over with the first batch; what follows is the stream itself.
                ready, began = time.perf_counter() - began, time.perf_counter()
            windows += int(batch["valid"].sum()) if "valid" in batch else len(batch["start"])
            nbytes += sum(batch[name].nbytes for name in signals)
            batches.append((batch["sequence_id"], batch["start"]))
    seconds = time.perf_counter() - began
    same = all(
        np.array_equal(new["start"], starts) and list(new["sequence_id"]) == list(ids)
        for new, (ids, starts) in zip(loader(), batches, strict=False)
    )
    if not same:
        raise click.ClickException("A second loader gave another order: please report this.")
    return (
        (
            f"2 epochs, {windows} windows of {window} steps over {', '.join(signals)}: "
            f"{windows / seconds:,.0f} windows/s, {nbytes / seconds / 1e6:,.0f} MB/s "
            f"(first batch after {ready:.1f} s)\n"
            "a second loader with the same seed gave the same order"
        ),
        {"windows": windows, "windows_per_second": round(windows / seconds)},
    )


def plot(path: Path, folder: Path) -> Told:
    """Draw some episodes."""
    import numpy as np

    from seqlake.cli.demo import _arm, _plot
    from seqlake.dataset.opening import open as open_dataset

    dataset = open_dataset(path)
    signal = next(n for n in dataset.schema.names if dataset.schema[n].category == "temporal")
    first = np.asarray(dataset[0][signal], np.float64)
    curves = [
        (f"{signal} {d}", np.stack([np.arange(len(first)), first[:, d]], -1)) for d in range(min(first.shape[1], 8))
    ]
    panels = [_plot.Panel(title=f"{signal} of {dataset[0].id}", curves=curves)]
    if "obs_state" in dataset.schema and dataset.schema["obs_state"].dim == 8:
        paths = [(dataset[i]["task"], _arm.hand(np.asarray(dataset[i]["obs_state"])[:, :3])) for i in range(9)]
        panels.append(_plot.Panel(title="Path of the hand, nine episodes", curves=paths))
    _plot.svg(panels, folder / "episodes.svg")
    _plot.png(panels, folder / "episodes.png")
    return f"{folder / 'episodes.svg'} and .png", {"plot": str(folder / "episodes.svg")}
