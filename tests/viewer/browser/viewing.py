"""A dataset whose films carry their frame numbers, the viewer's server, and a page that watches itself."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.viewer.browser import films

import seqlake as sl

HERE = Path(__file__).parent
READ = (HERE / "reading.js").read_text(encoding="utf-8")
STEPS = 90
FILMS = ("h264", "b_frames", "vp9", "av1", "hevc", "mpeg4", "variable", "late", "half", "depth")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--autoplay-policy=no-user-gesture-required",
    ),
]


def frame_of(name: str, step: int) -> int:
    """The frame that a film of the dataset shows at a step of 30 Hz."""
    return step // 2 if name == "half" else step


def make(root: Path, work: Path) -> sl.Dataset:
    """Sequences `every` and `short` with films of every kind, and `broken` with films that cannot be shown."""
    rate = {"half": 15}
    schema = sl.Schema(
        {
            "task": pa.string(),
            "reward": pa.float64(),
            "action": sl.Trajectory(dim=3, fps=30),
            "state": sl.Trajectory(dim=3, fps=30),
            "gripper": pa.list_(pa.int8()),
            **{name: sl.Video(fps=rate.get(name, 30)) for name in FILMS[:-1]},
            "depth": sl.Depth(fps=30),
        }
    )
    work.mkdir()
    uneven = np.concatenate([[0], np.cumsum(np.resize([10, 20, 40, 15, 15], 200))]).tolist()
    made: dict[str, Any] = {}
    for steps in (STEPS, 60):
        folder = work / str(steps)
        folder.mkdir()
        for kind in ("h264", "b_frames", "vp9", "av1", "hevc", "mpeg4"):
            made[f"{kind}{steps}"] = films.film(folder / kind, kind, steps)
        made[f"variable{steps}"] = films.film(folder / "variable", "h264", steps, ticks=uneven[:steps])
        made[f"late{steps}"] = films.film(folder / "late", "h264", steps, ticks=[300 + 20 * k for k in range(steps)])
        made[f"half{steps}"] = films.film(folder / "half", "h264", steps // 2, fps=15)
    strange = work / "strange.mp4"
    strange.write_bytes(made[f"h264{STEPS}"].read_bytes().replace(b"avc1", b"zzzz"))
    fewer = films.film(work / "fewer", "h264", 70)
    ds = sl.create(root, schema)
    with ds.writer() as writer:
        for name, steps, reward in (("every", STEPS, 1.0), ("short", 60, 2.0)):
            writer.add(
                name,
                task=f"look at <b>{name}</b>",
                reward=reward,
                **signals(steps),
                **{one: sl.File(made[f"{one}{steps}"]) for one in FILMS[:-1]},
                depth=films.depths(steps),
            )
        writer.add(
            "broken",
            task="find what is wrong",
            reward=-1.0,
            **signals(STEPS),
            h264=sl.File(made[f"h264{STEPS}"]),
            vp9=sl.File(strange),
            av1=sl.File(fewer),
        )
    lost = next(path for path in root.rglob("*.mp4") if path.stem.startswith("broken") and "h264" in str(path))
    lost.unlink()
    return sl.open(root)


def signals(steps: int) -> dict[str, Any]:
    """The first dimension is the step itself."""
    ramp = np.arange(steps, dtype=np.float32)
    wave = np.stack([ramp, 40 + 30 * np.sin(ramp / 9), 30 * np.cos(ramp / 5)], 1).astype(np.float32)
    return {"action": wave, "state": wave + 2, "gripper": (ramp // 20 % 2).astype(np.int8)}


class Server:
    """`seqlake view` on a folder, and where it is."""

    def __init__(self, root: Path, *more: str) -> None:
        """Start it, and wait until it has said its address."""
        command = "import sys; from seqlake.cli import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "view", str(root), "--no-open", "--port", "0", *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.append(line)
            if match := re.search(r"http://127\.0\.0\.1:\d+/\S*", line):
                self.start = match.group()
                break
        else:
            pytest.fail(f"the viewer did not say where it is: {''.join(self.said)}")
        self.origin = re.match(r"http://[^/]+", self.start).group()  # type: ignore[union-attr]
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        """Keep the pipe empty."""
        assert self.process.stdout
        self.said.extend(self.process.stdout)

    def stop(self) -> None:
        """End it, and wait for it."""
        self.process.terminate()
        self.process.wait(20)
        assert self.process.stdout
        self.process.stdout.close()


class Page:
    """A page of the viewer, that remembers what went wrong and what was asked for."""

    def __init__(self, browser: Any, server: Server, **options: Any) -> None:
        """A context of its own: cookies, drafts of the page and themes are not shared."""
        self.server = server
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 1100}, **options})
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.origin)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.expected: tuple[str, ...] = ()
        self.page.on(
            "console",
            lambda said: (
                self.wrong.append(f"{said.text} {said.location.get('url', '')}")
                if said.type in {"error", "warning"}
                else None
            ),
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(server.start)

    def open(self, path: str) -> Any:
        """Go to a page, and wait until it rests."""
        self.page.goto(f"{self.server.origin}/{path}")
        self.page.wait_for_load_state("networkidle")
        return self.page

    def rest(self, tracks: int = len(FILMS)) -> int:
        """Wait until every film shows what it should; the step."""
        self.page.wait_for_function(
            f"() => window.seqlakePlayer && seqlakePlayer.tracks.size >= {tracks} && seqlakePlayer.settled()"
        )
        self.page.evaluate("() => new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")
        return int(self.page.evaluate("seqlakePlayer.step"))

    def numbers(self, names: tuple[str, ...] = FILMS) -> dict[str, int | None]:
        """The frame numbers in the pixels of tiles."""
        return {name: self.page.evaluate(f"({READ})", name) for name in names}

    def close(self) -> None:
        """Close it, and complain of what it did."""
        self.context.close()
        foreign = [url for url in self.asked if not url.startswith((self.server.origin, "data:", "blob:"))]
        assert not foreign, "asked another origin"
        left = [text for text in self.wrong if not any(word in text for word in self.expected)]
        assert not left, left
