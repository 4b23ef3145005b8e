"""The demo's steps; each returns what to say and what was found."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from seqlake.cli.demo._arm import LINKS

if TYPE_CHECKING:
    from pathlib import Path

    from seqlake.cli.demo._arm import Episode
    from seqlake.dataset.selection import Selection
    from seqlake.dataset.writing.writer import Writer
    from seqlake.training.loader import Loader

    Told = tuple[str, dict[str, Any]]
    from numpy.typing import NDArray

FRONT = (160, 120)
"""Width and height of the camera that sees everything, in pixels."""

WRIST = (96, 72)
"""Width and height of the camera on the wrist."""

_THICK = (0.05, 0.04, 0.03)  # of the links, in metres
_COLORS = np.array([[67, 99, 216], [60, 180, 75], [245, 130, 49]], np.float32)
_JOINT = np.array([40, 40, 48], np.float32)


def front(angles: NDArray[Any]) -> NDArray[np.uint8]:
    """The arm as the fixed camera sees it: joint angles [3] -> uint8 [120, 160, 3]."""
    x, y = _grid(*FRONT, metres=2.0)
    return _with_arm(_table_before_front(), x, y, angles)


def wrist(angles: NDArray[Any]) -> NDArray[np.uint8]:
    """What lies before the hand, seen from the last link: joint angles [3] -> uint8 [72, 96, 3]."""
    turn, (left, up) = float(np.sum(angles)), _joints(angles)[-1].tolist()
    x, y = _grid(*WRIST, metres=0.5)
    x, y = left + np.cos(turn) * x - np.sin(turn) * y, up + np.sin(turn) * x + np.cos(turn) * y
    return _with_arm(_table(x, y), x, y, angles)


def _joints(angles: NDArray[Any]) -> NDArray[Any]:
    """[4, 2] the base, both joints and the hand, in metres."""
    total = np.cumsum(angles)
    ends = np.cumsum(LINKS[:, None] * np.stack([np.cos(total), np.sin(total)], -1), axis=0)
    return np.concatenate([np.zeros((1, 2)), ends])


@cache
def _grid(width: int, height: int, *, metres: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Where each pixel looks, around the middle of the picture: x and y as [height, width]; y goes up."""
    x, y = np.meshgrid(np.arange(width) - width / 2 + 0.5, height / 2 - 0.5 - np.arange(height))
    scale = metres / width
    return (x * scale).astype(np.float32), (y * scale).astype(np.float32)


@cache
def _table_before_front() -> NDArray[np.uint8]:
    return _table(*_grid(*FRONT, metres=2.0))


def _table(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.uint8]:
    """A table with a soft pattern: uint8 [height, width, 3]."""
    wood = 200 + 12 * np.sin(14 * x + 3 * np.sin(5 * y)) + 8 * np.sin(9 * y)
    return np.stack([wood, wood - 14, wood - 34], -1).astype(np.uint8)


def _with_arm(
    table: NDArray[np.uint8], x: NDArray[np.float32], y: NDArray[np.float32], angles: NDArray[Any]
) -> NDArray[np.uint8]:
    """The picture with three round links and the joint at which each begins."""
    out = table.copy()
    joints = _joints(angles)
    for number, ((left, up), (along_x, along_y)) in enumerate(zip(joints, np.diff(joints, axis=0), strict=False)):
        right_of, above, thick = x - np.float32(left), y - np.float32(up), _THICK[number]
        place = np.clip((right_of * along_x + above * along_y) / LINKS[number] ** 2, 0, 1)
        near = 1 - ((right_of - place * along_x) ** 2 + (above - place * along_y) ** 2) / thick**2
        link = near > 0
        out[link] = _COLORS[number] * (0.6 + 0.4 * np.sqrt(near[link]))[:, None]
        out[right_of**2 + above**2 < (0.6 * thick) ** 2] = _JOINT
    return out


def record_arm(path: Path, count: int) -> Told:
    """Simulate episodes, film them with two cameras, and record them step by step."""
    import pyarrow as pa

    from seqlake.cli.demo import _arm
    from seqlake.dataset.opening import create
    from seqlake.spec.column_types import Trajectory, Video
    from seqlake.spec.schema import Schema

    schema = Schema(
        {
            "task": pa.string(),
            "reward": pa.float32(),
            "success": pa.bool_(),
            "length": pa.int64(),
            "action": Trajectory(dim=3, units="Nm", fps=_arm.RATE),
            "obs_state": Trajectory(dim=8, fps=_arm.RATE),
            "cam_front": Video(fps=_arm.RATE, codec="h264", resolution=FRONT),
            "cam_wrist": Video(fps=_arm.RATE // 2, codec="h264", resolution=WRIST),
        }
    )
    dataset = create(path, schema)
    steps = frames = 0
    with dataset.writer() as writer:
        for episode in _arm.episodes(count):
            steps += len(episode.action)
            frames += record(writer, episode, episode.sequence_id)
    version = dataset.versions()[-1]
    return (
        (
            f"{count} episodes, {steps} control steps of a three-joint arm at {_arm.RATE} Hz\n"
            f"{frames} frames of two cameras ({_arm.RATE} and {_arm.RATE // 2} fps), encoded to H.264 as they came\n"
            f"committed as versions 1 to {version.id}, one for each take; each is all or nothing"
        ),
        {"episodes": count, "steps": steps, "frames": frames},
    )


def record(writer: Writer, episode: Episode, name: str) -> int:
    """Record one episode as a robot would give it, and say how many frames it has."""
    frames = 0
    with writer.record(name, task=episode.task) as take:
        for step, (action, state) in enumerate(zip(episode.action, episode.obs_state, strict=True)):
            cameras = {"cam_front": front(state[:3])}
            if step % 2 == 0:  # this camera is half as fast
                cameras["cam_wrist"] = wrist(state[:3])
            take.add(action=action, obs_state=state, **cameras)
            frames += len(cameras)
        take.set(reward=episode.reward, success=episode.success)
    return frames


_VICTIM = """
import sys
from seqlake.cli.demo import _arm, _steps
from seqlake.dataset.opening import open
with open(sys.argv[1]).writer() as writer:
    for episode in _arm.episodes(10_000, seed=1):
        _steps.record(writer, episode, "live_" + episode.sequence_id)
        print(episode.sequence_id, flush=True)
"""


def kill_writer(path: Path) -> Told:
    """Kill a process in the middle of a take, and look at what is left."""
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
            f"a second process recorded more and was killed with SIGKILL in the middle of take {written + 1}\n"
            f"all {kept} takes that it had committed are there, nothing half-written is visible"
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
    """Validate every row, every file and every frame."""
    from seqlake.dataset.opening import open as open_dataset

    report = open_dataset(path).validate(depth="decode")
    lines = [f"{len(report.errors)} errors, {len(report.warnings)} warnings at depth decode"]
    return "\n".join([*lines, *map(str, list(report)[:5])]), {"errors": len(report.errors)}


def query(path: Path) -> Told:
    """Ask in SQL over the same files."""
    from seqlake.cli._output import cell_text, table
    from seqlake.dataset.opening import open as open_dataset

    dataset = open_dataset(path)
    key = next(n for n in ("task", "language_instruction", "sequence_id") if n in dataset.schema)
    signal = next(n for n in dataset.schema.names if dataset.schema[n].category == "temporal")
    text = (
        f'SELECT "{key}", count(*) AS episodes, sum(len("{signal}")) AS steps, '
        f'max(abs(list_extract("{signal}", 1)[1])) AS first FROM dataset GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 6'
    )
    result = dataset.sql(text).to_arrow_table()
    rows = [[cell_text(value) for value in row.values()] for row in result.to_pylist()]
    first = dataset.select("sequence_id").to_arrow().column(0)[0].as_py()
    return f"{text}\n\n{table(rows, head=result.column_names)}", {"first_id": first}


def assign(path: Path) -> Told:
    """Assign train and validation; the temporal bytes stay where they are."""
    from seqlake.dataset.opening import open as open_dataset
    from seqlake.dataset.reshaping.splits import assign_splits

    dataset = open_dataset(path)
    assign_splits(dataset, {"train": 0.9, "val": 0.1})
    counts = dict(dataset.sql("SELECT split, count(*) FROM dataset GROUP BY 1 ORDER BY 1").fetchall())
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{said}; a column added beside the shards, no signal was rewritten", {"splits": counts}


def summarise(path: Path) -> Told:
    """Find ranges, moments and quantiles of all signals, and of the pictures."""
    from seqlake.dataset.statistics import statistics

    stats = statistics(_train_rows(path), progress=False)
    lines = []
    for name, column in stats.items():
        if column.category in {"temporal", "file", "frames"} and column.count.all():
            numbers = ", ".join(
                f"{m:.3g} ± {s:.2g}" for m, s in zip(column.mean.ravel()[:4], column.std.ravel()[:4], strict=True)
            )
            sampled = f" ({column.frames} frames, by channel, 0 to 1)" if column.frames else ""
            lines.append(f"{name}: {numbers}{', ...' if column.count.size > 4 else ''}{sampled}")
    return "\n".join(lines), {"statistics": {name: column.mean.tolist() for name, column in stats.items()}}


def train(path: Path, window: int) -> Told:
    """Stream two shuffled epochs of windows of signals, then one with frames."""
    from seqlake.dataset.drawing.strips import is_pictures
    from seqlake.dataset.statistics import statistics
    from seqlake.training.loader import Loader
    from seqlake.windows.spec import Window

    source = _train_rows(path)
    signals = {n: range(window) for n in source.schema.names if source.schema[n].category == "temporal"}
    stats = statistics(source, progress=False).select(*signals)  # kept since they were found

    def loader() -> Loader:
        fresh = Loader(source, window=Window(signals), batch_size=256, shuffle=True, seed=0)
        return fresh.normalize(stats).tail("pad")

    windows, rate, order, _ = _streamed(loader(), epochs=2)
    again = loader()
    if any(_order(batch) != expected for batch, expected in zip(again, order, strict=False)):
        raise click.ClickException("A second loader gave another order: please report this.")
    said = [
        f"2 epochs, {windows} windows of {window} steps over {', '.join(signals)}: {rate:,.0f} windows/s",
        "a second loader with the same seed gave the same order",
    ]
    facts: dict[str, Any] = {"windows": windows, "windows_per_second": round(rate)}
    cameras = [n for n in source.schema.names if is_pictures(source.schema[n])]
    if cameras:
        spec = Window({**dict.fromkeys(cameras, range(-1, 1)), **signals}, stride=4)
        filmed = Loader(source, window=spec, batch_size=32, shuffle=True, seed=0).normalize(stats).tail("pad")
        windows, rate, _, shapes = _streamed(filmed, epochs=1)
        said.append(f"with 2 frames each of {', '.join(cameras)}: {windows} windows, {rate:,.0f} windows/s")
        said += [f"{name}: uint8 {shapes[name]}" for name in cameras[:2]]
        facts["windows_with_frames_per_second"] = round(rate)
    return "\n".join(said), facts


def _train_rows(path: Path) -> Selection:
    from seqlake.dataset.opening import open as open_dataset

    return open_dataset(path).where("split = 'train'")


def _streamed(loader: Loader, *, epochs: int) -> tuple[int, float, list[Any], dict[str, list[int]]]:
    """Windows, windows a second, the order of the samples and the shapes of a batch."""
    windows, order, shapes = 0, list[Any](), dict[str, list[int]]()
    began = time.perf_counter()
    for _ in range(epochs):
        for batch in loader:
            if not order:
                # Importing and opening are over with the first batch; what follows is the stream itself.
                began = time.perf_counter()
                shapes = {name: list(values.shape) for name, values in batch.items()}
            windows += int(batch["valid"].sum()) if "valid" in batch else len(batch["start"])
            order.append(_order(batch))
    return windows, windows / (time.perf_counter() - began), order, shapes


def _order(batch: Any) -> tuple[list[str], list[int]]:
    return list(batch["sequence_id"]), batch["start"].tolist()


def draw(path: Path, folder: Path) -> Told:
    """Draw a contact sheet of one episode, and curves of some."""
    import numpy as np

    from seqlake.cli.demo import _arm
    from seqlake.dataset import drawing
    from seqlake.dataset.opening import open as open_dataset

    dataset = open_dataset(path)
    drawing.save(drawing.contact_sheet(dataset[0]), folder / "contact-sheet.png")
    signal = next(n for n in dataset.schema.names if dataset.schema[n].category == "temporal")
    first = np.asarray(dataset[0][signal], np.float64)
    curves = [
        (f"{signal} {d}", np.stack([np.arange(len(first)), first[:, d]], -1)) for d in range(min(first.shape[1], 8))
    ]
    panels = [drawing.Panel(title=f"{signal} of {dataset[0].id}", curves=curves, height=300)]
    if "obs_state" in dataset.schema and dataset.schema["obs_state"].dim == 8:
        paths = [(episode["task"], _arm.hand(np.asarray(episode["obs_state"])[:, :3])) for episode in list(dataset)[:9]]
        panels.append(drawing.Panel(title=f"Path of the hand, {len(paths)} episodes", curves=paths, height=300))
    drawing.svg(panels, folder / "episodes.svg")
    drawing.png(panels, folder / "episodes.png")
    return (
        (
            f"{folder / 'contact-sheet.png'}: frames of each camera and the signals of {dataset[0].id}\n"
            f"{folder / 'episodes.svg'} and .png: curves"
        ),
        {"contact_sheet": str(folder / "contact-sheet.png"), "plot": str(folder / "episodes.svg")},
    )
