"""What the cameras of benchmarks film, the files it is kept in, and how alike two encodings of it are.

Episodes of two 640x480 cameras: a drawn arm before a textured ground, with sensor noise, 30 frames a second.
"""

from __future__ import annotations

import json
import statistics
import time
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np

import seqlake as sl
from seqlake.media import VideoEncoder

if TYPE_CHECKING:
    from collections.abc import Iterator

FPS, FRAMES, EPISODES, CAMERAS = 30, 300, 4, ("cam_high", "cam_wrist")
WIDTH, HEIGHT = 640, 480
COMPARED = 60  # frames, for the likeness of encodings
TEXTURE, NOISE = 10.0, 2.2  # grey levels, standard deviation


def scene(seed: int, frames: int = FRAMES) -> Iterator[np.ndarray]:
    """Pictures of an arm that moves: uint8 [480, 640, 3]."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    ground = 90 + 30 * np.sin(x / 97 + seed) * np.cos(y / 71) + 12 * np.sin((x + 2 * y) / 9)
    ground = ground[..., None] * np.array([1.0, 0.9, 0.75], np.float32)
    ground += np.kron(random.normal(0, TEXTURE, (HEIGHT // 4, WIDTH // 4, 3)), np.ones((4, 4, 1)))
    noise = random.normal(0, NOISE, (8, HEIGHT, WIDTH, 3)).astype(np.float32)
    speeds, phases = random.uniform(0.6, 1.6, 3), random.uniform(0, 6, 3)
    for number in range(frames):
        angles = np.cumsum(0.8 * np.sin(speeds * number / FPS + phases)) - np.pi / 2
        joints = np.cumsum([[WIDTH / 2, HEIGHT - 20], *(130 * np.stack([np.cos(angles), np.sin(angles)], 1))], 0)
        picture = ground.copy()
        for (x0, y0), (x1, y1), thick in zip(joints, joints[1:], (26, 20, 14), strict=False):
            along = np.clip(((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / 130**2, 0, 1)
            inside = np.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0)) < thick
            picture[inside] = np.array([210, 200, 60]) - 60 * along[inside, None]
        picture += np.roll(noise[number % 8], random.integers(HEIGHT), 0)
        yield np.clip(picture, 0, 255).astype(np.uint8)


def luma(frames: Iterator[Any]) -> Iterator[np.ndarray]:
    """[height, width] float of pictures or decoded frames, BT.709 in the range of television."""
    for frame in frames:
        if isinstance(frame, np.ndarray):
            yield 16 + (frame @ np.array([0.2126, 0.7152, 0.0722])) * 219 / 255
        else:
            plane = frame.planes[0]
            rows = np.frombuffer(plane, np.uint8).reshape(HEIGHT, plane.line_size)
            yield rows[:, :WIDTH].astype(np.float64)


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Structural similarity over windows of 8x8 that lie 4 apart, as FFmpeg takes them."""

    def sums(values: np.ndarray) -> np.ndarray:
        small = values.reshape(values.shape[0] // 4, 4, values.shape[1] // 4, 4).sum((1, 3))
        return (small[1:, 1:] + small[:-1, 1:] + small[1:, :-1] + small[:-1, :-1]) / 64

    mean_a, mean_b = sums(a), sums(b)
    spread = sums(a * a) - mean_a**2 + sums(b * b) - mean_b**2
    both = sums(a * b) - mean_a * mean_b
    first, second = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    found = (2 * mean_a * mean_b + first) * (2 * both + second)
    return float((found / ((mean_a**2 + mean_b**2 + first) * (spread + second))).mean())


def quality(path: str, seed: int, frames: int) -> float:
    """Mean SSIM of a file's first frames against what was filmed."""
    with av.open(path) as container:
        pairs = zip(luma(scene(seed)), luma(container.decode(video=0)), range(frames), strict=False)
        return statistics.fmean(ssim(a, b) for a, b, _ in pairs)


def write_films(folder: Path, encoding: Any, *, episodes: int = EPISODES, frames: int = FRAMES) -> dict[str, Any]:
    """A dataset of the episodes: where it lies, its videos, bytes a frame, seconds it took."""
    schema = sl.Schema({camera: sl.Video(fps=FPS) for camera in CAMERAS})
    begin = time.perf_counter()
    if not (folder / "mixtrain.json").exists():
        with sl.create(folder, schema).writer(encoding=encoding) as writer:
            for number in range(episodes):
                cells = {camera: scene(10 * number + place, frames) for place, camera in enumerate(CAMERAS)}
                writer.add(f"ep_{number}", **cells)
    rows = sl.open(folder)
    videos = [[rows[f"ep_{number}"][camera].location for camera in CAMERAS] for number in range(episodes)]
    size = sum(Path(path).stat().st_size for pair in videos for path in pair)
    return {
        "dataset": str(folder),
        "videos": videos,
        "bytes_per_frame": size / (len(videos) * len(CAMERAS) * frames),
        "seconds": time.perf_counter() - begin,
        "ssim": quality(videos[0][0], 0, COMPARED),
    }


def as_lerobot(crf: int) -> Any:
    """What LeRobot 0.4.4 writes by default, but for the quality (its own is 30)."""
    return sl.Encoding(codec="libsvtav1", keyframe_every=2, options={"crf": str(crf), "preset": "12"})


def matched(folder: Path, target: float) -> int:
    """The crf with which LeRobot's encoding comes nearest to a given SSIM."""

    @cache
    def seen(crf: int) -> float:
        path = folder / f"try-{crf}.mp4"
        encoder = VideoEncoder(path, fps=Fraction(FPS), encoding=as_lerobot(crf))
        for _, picture in zip(range(COMPARED), scene(0), strict=False):
            encoder.write(picture)
        encoder.close()
        found = quality(str(path), 0, COMPARED)
        path.unlink()
        print(f"AV1, crf {crf}: SSIM {found:.4f}, wanted {target:.4f}", flush=True)
        return found

    low, high = 10, 50
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if seen(middle) >= target else (low, middle)
    return min(low, high, key=lambda crf: abs(seen(crf) - target))


def prepare(folder: Path, *, episodes: int = EPISODES, frames: int = FRAMES, alike: bool = True) -> dict[str, Any]:
    """Every file that readers read, and what they are told of them; kept in the folder, made once.

    Args:
        folder: Where to.
        episodes: How many, of two files each.
        frames: Of each file.
        alike: Also LeRobot's encoding of the same likeness, and a film of ten minutes.
    """
    saved = folder / "plan.json"
    if saved.exists():
        return dict(json.loads(saved.read_text()))
    files = {"h264": write_films(folder / "h264", sl.Encoding(), episodes=episodes, frames=frames)}
    if alike:
        crf = matched(folder, files["h264"]["ssim"])
        files["av1"] = write_films(folder / "av1", as_lerobot(crf)) | {"crf": crf}
        ten_minutes(folder, files["h264"]["videos"][0][0])
    first, expected = frames // 3 + 1, {}
    for name, made in files.items():
        with av.open(made["videos"][0][0]) as container:
            every = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        expected[name] = np.stack(every[first : first + 5])
    np.savez(folder / "expected.npz", **expected)
    plan = {
        "files": files,
        "episodes": [f"ep_{number}" for number in range(episodes)],
        "cameras": CAMERAS,
        "frames": frames,
        "fps": FPS,
        "first": first,
        "tolerance": 2,
        "threads": 2,
        "expected": str(folder / "expected.npz"),
    }
    saved.write_text(json.dumps(plan))
    return plan


def ten_minutes(folder: Path, source: str) -> None:
    """18 000 frames, no two alike: an episode again and again, each time moved on."""
    with av.open(source) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    encoder = VideoEncoder(folder / "ten-minutes.mp4", fps=Fraction(FPS))
    for number in range(18_000):
        encoder.write(np.roll(pictures[number % FRAMES], 11 * (number // FRAMES), 1))
    encoder.close()
