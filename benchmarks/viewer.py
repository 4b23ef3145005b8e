"""The viewer in Chromium: a table of 1,000,000 sequences beside one of 1,000, an episode beside its bare videos.

    python benchmarks/viewer.py             some four minutes
    python benchmarks/viewer.py --small     that it works; its numbers mean little

How it is measured. One headless Chromium without a GPU, one server a dataset, both on this machine; each page is opened
anew in a context without a cache, the two sides of a ratio in turn, medians count. *First useful paint* is from the
navigation until the first row of the table stands there with its link; *all of it* until each histogram, sparkline and
strip of the page has come and the network rests. *Opening an episode* is until all five films show the frame of
the step and the first panel of signals is drawn. Beside it stands a page that does nothing but show the same five
videos from the same server, until each has its first frame: what no viewer can be faster than here. *Scrubbing* seeks
to 60 steps; the time is from the seek until everything that draws has drawn (the call itself), and until the next frame
of the browser after it. Bytes are those of the network.

Rerun's web viewer is no side of it: it needs WebGL, which this browser only imitates in software.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pages import Checks, conditions, save, verdicts
from playwright.sync_api import sync_playwright

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
FILMS, SIGNALS, FRAMES, LONG = 5, 60, 300, (20_000, 60)
READY = """() => window.seqlakePlayer && seqlakePlayer.tracks.size >= %d && seqlakePlayer.settled()
    && document.querySelectorAll('.u-over').length > 0"""
BARE = """async (names) => {
    const begin = performance.now();
    document.documentElement.innerHTML = "";
    await Promise.all(names.map((name) => new Promise((then) => {
        const film = document.createElement("video");
        film.muted = true; film.preload = "auto";
        film.addEventListener("loadeddata", then, { once: true });
        film.src = `/media?id=ep&col=${name}&fresh=${Math.random()}`;
        document.documentElement.append(film);
    })));
    return performance.now() - begin; }"""
SCRUB = """async (steps) => {
    const calls = [], frames = [];
    for (let i = 0; i < steps; i += 1) {
        const begin = performance.now();
        seqlakePlayer.seek(Math.floor((i / steps) * (seqlakePlayer.steps - 1)));
        calls.push(performance.now() - begin);
        await new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)));
        frames.push(performance.now() - begin);
    }
    const middle = (list) => list.sort((a, b) => a - b)[list.length >> 1];
    return [middle(calls), middle(frames)]; }"""


def table(folder: Path, rows: int) -> sl.Dataset:
    """Sequences with eight small columns and a short signal."""
    if folder.exists():
        return sl.open(folder)
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "task": pa.string(),
        "split": pa.string(),
        "success": pa.bool_(),
        "when": pa.timestamp("us"),
    }
    columns |= {name: pa.float64() for name in ("reward", "speed", "score", "weight")}
    ds = sl.create(folder, {**columns, "action": sl.Trajectory(dim=2, fps=10)})
    kind = ds.schema["action"].logical
    with ds.writer(rows_per_shard=100_000) as writer:
        for first in range(0, rows, 50_000):
            count = min(50_000, rows - first)
            numbers = np.arange(first, first + count)
            steps = pa.FixedSizeListArray.from_arrays(pa.array(random.random(count * 8, np.float32)), 2)
            action = pa.ListArray.from_arrays(pa.array(np.arange(count + 1) * 4, pa.int32()), steps).cast(kind)
            batch = {
                "sequence_id": pa.array([f"ep_{number:07d}" for number in numbers]),
                "task": pa.array([f"task {number % 37}" for number in numbers]),
                "split": pa.array(np.where(numbers % 10, "train", "test")),
                "success": pa.array(numbers % 3 == 0),
                "when": pa.array(numbers * 1_000_000, pa.timestamp("us")),
                **{name: pa.array(random.random(count)) for name in ("reward", "speed", "score", "weight")},
                "action": action,
            }
            writer.add_batch(pa.record_batch(batch))
    return sl.open(folder)


def episode(folder: Path, frames: int) -> sl.Dataset:
    """One sequence of five films and sixty signals, and one with a single long and wide signal."""
    if folder.exists():
        return sl.open(folder)
    random = np.random.default_rng(1)
    films = {f"cam_{number}": sl.Video(fps=30) for number in range(FILMS)}
    signals = {f"signal_{number:02d}": sl.Trajectory(dim=1 + number % 6, fps=30) for number in range(SIGNALS)}
    ds = sl.create(folder, {**films, **signals, "wide": sl.Trajectory(dim=LONG[1], fps=100)})
    y, x = np.mgrid[:240, :320]
    moves = np.arange(frames)[:, None, None]
    with ds.writer() as writer:
        row: dict[str, Any] = {}
        for number, name in enumerate(films):
            grey = (127 + 60 * np.sin((x + moves) / 11 + number) + 60 * np.cos((y - moves) / 7)).astype(np.uint8)
            row[name] = np.stack([grey, np.roll(grey, 40, 2), np.roll(grey, 90, 1)], -1)
        for name in signals:
            row[name] = random.standard_normal((frames, ds.schema[name].shape[0]), dtype=np.float32).cumsum(0)
        writer.add("ep", **row)
        writer.add("long", wide=random.standard_normal(LONG, dtype=np.float32).cumsum(0))
    return sl.open(folder)


class Pages:
    """Pages of one server, each opened anew."""

    def __init__(self, browser: Any, ds: sl.Dataset, labels: Path) -> None:
        self.browser = browser
        self.link = sl.view(ds, labels=labels)
        self.origin = self.link.url.partition("/?")[0]
        self.token = self.link.url.partition("token=")[2]

    def open(self, path: str, work: Callable[[Any, float], dict[str, float]]) -> dict[str, float]:
        """What `work` measures on a page, with the bytes that came."""
        context = self.browser.new_context(viewport={"width": 1280, "height": 860})
        page = context.new_page()
        counted = context.new_cdp_session(page)
        received = [0]
        counted.send("Network.enable")
        counted.on("Network.dataReceived", lambda event: received.__setitem__(0, received[0] + event["dataLength"]))
        page.goto(f"{self.origin}/static/icon.svg?token={self.token}")  # the cookie, so that no redirect counts
        context.add_cookies(
            [{"name": f"seqlake-{self.origin.rpartition(':')[2]}", "value": self.token, "url": self.origin}]
        )
        received[0] = 0
        begin = time.perf_counter()
        if path != "bare":
            page.goto(f"{self.origin}/{path}", wait_until="commit")
        measured = work(page, begin)
        measured["bytes"] = float(received[0])
        context.close()
        return measured


def passed(begin: float) -> float:
    """Milliseconds since a moment."""
    return (time.perf_counter() - begin) * 1000


def of_table(page: Any, begin: float) -> dict[str, float]:
    """First useful paint, and all of it."""
    page.wait_for_selector("tbody th a", timeout=120_000)
    first = passed(begin)
    page.wait_for_load_state("networkidle", timeout=120_000)
    return {"first": first, "all": passed(begin) - 500}  # a network rests for half a second


def of_episode(page: Any, begin: float) -> dict[str, float]:
    """Until its films and signals are there, then scrubbing."""
    page.wait_for_function(READY % FILMS, timeout=120_000, polling=20)
    opened = passed(begin)
    call, frame = page.evaluate(SCRUB, 60)
    return {"opened": opened, "call": call, "frame": frame}


def of_signal(page: Any, begin: float) -> dict[str, float]:
    """Until the long signal is drawn, as a heatmap and as curves, then scrubbing."""
    page.wait_for_selector('[data-panel="wide"] canvas', timeout=120_000)
    drawn = passed(begin)
    call, frame = page.evaluate(SCRUB, 60)
    return {"opened": drawn, "call": call, "frame": frame}


def of_bare(page: Any, _: float) -> dict[str, float]:
    """The videos alone."""
    return {"opened": page.evaluate(BARE, [f"cam_{number}" for number in range(FILMS)])}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Of each number, over the rounds."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def measure(work: Path, *, rows: int, frames: int, rounds: int) -> dict[str, dict[str, float]]:
    """All numbers, by side."""
    many, few = table(work / f"{rows}", rows), table(work / "1000", 1000)
    taken = episode(work / "episode", frames)
    sides: dict[str, list[dict[str, float]]] = {}
    with sync_playwright() as driver:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        tables = {"many": Pages(browser, many, work / "labels"), "few": Pages(browser, few, work / "labels")}
        films = Pages(browser, taken, work / "labels")
        for number in range(rounds + 1):
            part: dict[str, dict[str, float]] = {name: pages.open("", of_table) for name, pages in tables.items()}
            part["filtered"] = tables["many"].open(
                "?where=reward%20%3E%200.5%20AND%20task%20%3D%20'task%203'", of_table
            )
            part["deep"] = tables["many"].open(f"?page={rows // 60}", of_table)
            part["bare"] = films.open("bare", of_bare)
            part["episode"] = films.open("seq?id=ep", of_episode)
            part["heatmap"] = films.open("seq?id=long", of_signal)
            part["curves"] = films.open("seq?id=long&dims=wide:0-15", of_signal)
            if number:  # the first round opens files
                for name, one in part.items():
                    sides.setdefault(name, []).append(one)
            else:
                sides |= {f"cold {name}": [one] for name, one in part.items() if name in tables}
        browser.close()
    return {name: medians(one) for name, one in sides.items()}


TITLES = {
    "few": "table of 1,000", "many": "table of {rows:,}", "filtered": "the same, filtered", "deep": "far behind in it",
    "cold few": "1,000, the first time", "cold many": "{rows:,}, the first time", "bare": "five bare videos",
    "episode": "5 videos, 60 signals", "heatmap": "[20000, 60] as a heatmap", "curves": "16 of its 60 as curves",
}  # fmt: skip


def page_of(report: dict[str, Any], checks: list[dict[str, Any]]) -> str:
    """The report as Markdown."""
    lines = [
        "# The viewer",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}; load {report['load_before']:.1f} before;",
    ]
    lines += [f"Chromium without a GPU, medians of {report['rounds']} rounds in milliseconds."]
    lines += ["`benchmarks/viewer.py` writes this page and says how it measures.", ""]
    lines += [
        "| page | first rows | all of it, or open | a seek | until it is on the screen | kB |",
        "|---|---|---|---|---|---|",
    ]
    for name, title in TITLES.items():
        one = report["sides"].get(name)
        if one is None:
            continue
        cells = [one.get("first"), one.get("all", one.get("opened")), one.get("call"), one.get("frame")]
        texts = ["" if cell is None else f"{cell:.1f}" if cell < 20 else f"{cell:.0f}" for cell in cells]
        lines.append(f"| {title.format(rows=report['rows'])} | {' | '.join(texts)} | {one['bytes'] / 1000:,.0f} |")
    return "\n".join([*lines, *verdicts(checks)]) + "\n"


def main() -> None:
    """Measure, and write the page."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--small", action="store_true")
    asked.add_argument("--work", type=Path, help="keep the data there, and take what is there")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--out", type=Path, default=HERE / "results" / "viewer.json")
    options = asked.parse_args()
    rows, frames = (20_000, 60) if options.small else (1_000_000, FRAMES)
    report: dict[str, Any] = {**conditions(), "rows": rows, "rounds": options.rounds}
    with tempfile.TemporaryDirectory() as work:
        place = options.work or Path(work)
        report["sides"] = sides = measure(place, rows=rows, frames=frames, rounds=options.rounds)
    checks = Checks()
    checks.check("first useful paint, many to few", sides["many"]["first"] / sides["few"]["first"], 1.5, at_most=True)
    checks.check(
        "the first time, many to few", sides["cold many"]["first"] / sides["cold few"]["first"], 1.5, at_most=True
    )
    checks.check("an episode to its bare videos", sides["episode"]["opened"] / sides["bare"]["opened"], 5, at_most=True)
    checks.check("a seek with 5 videos and 60 signals, ms", sides["episode"]["call"], 16, at_most=True)
    report["checks"] = checks
    save(options.out, report, page_of(report, checks))


if __name__ == "__main__":
    main()
