"""Datasets with cameras whose every frame is known: PyAV decodes them here in sequence, with one reformatter."""

from __future__ import annotations

import io
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter

import seqlake as sl

from ..media import clips  # noqa: TID252 - tests are no package that could be named

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 40
EVERY_OTHER = range(0, 2 * clips.COUNT // 2, 2)  # 20 pictures, 15 a second
FILMS = {
    "b": lambda: clips.clip("h264 with B-frames"),
    "training": lambda: clips.clip("h264 training profile"),
    "open": lambda: clips.clip("h264 open groups"),
    "half": lambda: clips.encode(times=EVERY_OTHER, bf="2", g="6"),
    "half, mkv": lambda: clips.encode(container="matroska", times=EVERY_OTHER, bf="2", g="6"),
    "short": lambda: clips.encode(times=range(33), bf="2", g="8"),
    "uneven": lambda: clips.clip("uneven times, mp4"),
    "small": lambda: clips.encode(times=range(12), size=(64, 48), g="4"),
}
SCHEMA = sl.Schema({"action": sl.Trajectory(dim=2), "cam": sl.Video(fps=30), "wrist": sl.Video(fps=15)})
EPISODES = [("b", "half"), ("training", None), ("open", "half, mkv"), (None, "half"), ("short", "half")]


@cache
def film(name: str) -> bytes:
    """The file's bytes, encoded once in a process."""
    return FILMS[name]()


@cache
def frames(name: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """[frames, height, width, 3] as PyAV gives them, one after the other; `size` is (height, width)."""
    reformatter, found = VideoReformatter(), []
    with av.open(io.BytesIO(film(name))) as container:
        for frame in container.decode(video=0):
            height, width = size or (frame.height, frame.width)
            way = Interpolation.BICUBIC if size is None else Interpolation.AREA
            made = reformatter.reformat(frame, width=width, height=height, format="rgb24", interpolation=way, threads=1)
            found.append(made.to_ndarray())
    return np.stack(found)


@cache
def times(name: str) -> list[Fraction]:
    """When each frame is shown, in seconds after the first."""
    with av.open(io.BytesIO(film(name))) as container:
        shown = [frame.pts * frame.time_base for frame in container.decode(video=0)]
    return [Fraction(time - shown[0]) for time in shown]


def write(root: Path, names: list[str]) -> None:
    for name in names:
        (root / f"{name}.mp4").write_bytes(film(name))


def arm(root: Path, **options) -> sl.Dataset:
    """Five episodes of 40 steps with a camera at their rate and one at half of it, in several shards."""
    write(root, sorted({name for pair in EPISODES for name in pair if name}))
    ds = sl.create(root / "arm" if not options else options.pop("at"), SCHEMA, **options)
    with ds.writer(rows_per_shard=2) as writer:
        for number, pair in enumerate(EPISODES):
            cam, wrist = (None if name is None else sl.File(root / f"{name}.mp4") for name in pair)
            steps = np.arange(STEPS, dtype=np.float32)
            action = np.stack([steps, steps + 100 * number], axis=1)
            writer.add(f"ep_{number}", action=action, cam=cam, wrist=wrist)
    return ds


def expected(name: str | None, numbers: list[int], there: list[bool], edges: str, size=None) -> tuple:
    """Frames and mask of one window, one by one."""
    shape = frames("b", size).shape[1:]
    count = 0 if name is None else len(frames(name, size))
    pictures = []
    for number, is_there in zip(numbers, there, strict=True):
        if name is not None and (is_there or edges == "clamp"):
            pictures.append(frames(name, size)[min(max(number, 0), count - 1)])
        else:
            pictures.append(np.zeros(shape, np.uint8))
    return np.stack(pictures), np.array(there)
