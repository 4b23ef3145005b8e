"""The viewer in Chromium: a million sequences beside a thousand, an episode beside Rerun's viewer and its bare films.

    python benchmarks/viewer.py             at most six minutes, whatever happens
    python benchmarks/viewer.py --light     that it works; its numbers mean little

How it is measured. Headless Chromium without a GPU, one server a dataset, both on this machine; each page is opened
anew in a context without a cache, the two sides of a ratio in turn, medians count. *First useful paint* is from the
navigation until the first row of the table stands there with its link; *all of it* until each histogram, sparkline
and strip of the page has come and the network rests. *Opening an episode* is until all five films show the frame of
the step and the first panel of signals is drawn. Beside it stand a page that does nothing but show the same five
films from the same server, until each has its first frame, which is what no viewer can be faster than here; and
Rerun's web viewer, which gets the same episode by `seqlake convert --to rerun`, until its picture shows the films.
Rerun draws by WebGL, which this Chromium imitates in software: with a GPU it is faster than it is here. *A seek* is
the call itself, and the time until the next frame of the browser after it; for both viewers also from a move of the
mouse over the time line until the second frame of the browser after it. Bytes are those of the network.

Each part is a process of its own that ends after its time, and makes as many rounds as fit; what did not come to its
end is said.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pages import Checks, conditions, save, verdicts
from playwright.sync_api import Error as BrowserError
from playwright.sync_api import sync_playwright

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
FILMS, SIGNALS, FRAMES, LONG = 5, 60, 300, (20_000, 60)
LIMITS = {"data": 75, "tables": 75, "episode": 75, "rerun": 90}
"""Part -> seconds after which it is ended; together less than six minutes."""
READY = """() => window.seqlakePlayer && seqlakePlayer.tracks.size >= %d && seqlakePlayer.settled()
    && document.querySelectorAll('.u-over').length > 0"""
BARE = "<!doctype html><title>films</title>" + "".join(
    f'<video muted preload="auto" src="media?id=ep&amp;col=cam_{number}"></video>' for number in range(FILMS)
)
SHOWN = "() => [...document.querySelectorAll('video')].every((one) => one.readyState >= 2)"
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
MOVES = """() => { window.seqlakeMoves = [];
    addEventListener("pointermove", () => { const begin = performance.now();
        const after = () => seqlakeMoves.push(performance.now() - begin);
        requestAnimationFrame(() => requestAnimationFrame(after)); }, true); }"""


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


def counting(context: Any, page: Any) -> list[int]:
    """[bytes] that a page has received so far."""
    received, session = [0], context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.dataReceived", lambda event: received.__setitem__(0, received[0] + event["dataLength"]))
    return received


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
        page.set_default_timeout(0)  # the part has a limit
        received = counting(context, page)
        page.route("**/bare", lambda route: route.fulfill(body=BARE, content_type="text/html"))
        page.goto(f"{self.origin}/static/icon.svg?token={self.token}")  # the cookie, so that no redirect counts
        context.add_cookies(
            [{"name": f"seqlake-{self.origin.rpartition(':')[2]}", "value": self.token, "url": self.origin}]
        )
        received[0] = 0
        begin = time.perf_counter()
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
    page.wait_for_selector("tbody th a", timeout=0)
    first = passed(begin)
    page.wait_for_load_state("networkidle", timeout=0)
    return {"first": first, "all": passed(begin) - 500}  # a network rests for half a second


def of_episode(page: Any, begin: float) -> dict[str, float]:
    """Until its films and signals are there, then scrubbing."""
    page.wait_for_function(READY % FILMS, timeout=0, polling=20)
    opened = passed(begin)
    call, frame = page.evaluate(SCRUB, 60)
    line = page.locator(".timeline-track").bounding_box()
    return {"opened": opened, "call": call, "frame": frame, "move": moved(page, line)}


def moved(page: Any, line: dict[str, float]) -> float:
    """Milliseconds from a move of the pressed mouse over a time line until the second frame of the browser after it."""
    page.evaluate(MOVES)
    middle = line["y"] + line["height"] / 2
    page.mouse.move(line["x"] + 5, middle)
    page.mouse.down()
    for number in range(12):
        page.mouse.move(line["x"] + line["width"] * (0.1 + number / 15), middle)
        page.wait_for_function("count => seqlakeMoves.length > count", arg=number, polling=10)
    page.mouse.up()
    return float(statistics.median(page.evaluate("seqlakeMoves")))


def of_signal(page: Any, begin: float) -> dict[str, float]:
    """Until the long signal is drawn, as a heatmap and as curves, then scrubbing."""
    page.wait_for_selector('[data-panel="wide"] canvas', timeout=0)
    drawn = passed(begin)
    call, frame = page.evaluate(SCRUB, 60)
    return {"opened": drawn, "call": call, "frame": frame}


def of_bare(page: Any, begin: float) -> dict[str, float]:
    """The films alone."""
    page.wait_for_function(SHOWN, timeout=0, polling=20)
    return {"opened": passed(begin)}


@contextmanager
def chromium(*more: str) -> Iterator[Any]:
    """A browser, closed at the end."""
    with sync_playwright() as driver:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", *more])
        yield browser
        browser.close()


def colourful(picture: bytes) -> bool:
    """Whether a picture shows the films, which are of strong colours as nothing else is."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"), np.int16)
    return bool(((pixels.max(2) - pixels.min(2)) > 60).mean() > 0.1)


def free() -> int:
    """A port that nobody listens to."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# ---- the parts, each a process of its own


def data(work: Path, options: argparse.Namespace, told: Callable[[str, dict[str, float]], None]) -> None:
    """The datasets."""
    begin = time.perf_counter()
    for rows in (options.rows, 1000):
        table(work / f"{rows}", rows)
    told("made", {"tables": passed(begin)})
    episode(work / "episode", options.frames)
    told("made", {"all": passed(begin)})


def tables(work: Path, options: argparse.Namespace, told: Callable[[str, dict[str, float]], None]) -> None:
    """Tables of many and of few rows, in turn. The first round opens files, and is told by itself."""
    with chromium("--disable-gpu") as browser:
        many, few = (Pages(browser, sl.open(work / f"{rows}"), work / "labels") for rows in (options.rows, 1000))
        sides = {"many": (many, ""), "few": (few, "")}
        sides["filtered"] = (many, "?where=reward%20%3E%200.5%20AND%20task%20%3D%20'task%203'")
        sides["deep"] = (many, f"?page={options.rows // 60}")
        for number in range(options.rounds + 1):
            for name, (pages, path) in sides.items():
                one = pages.open(path, of_table)
                if number or name in {"many", "few"}:
                    told(name if number else f"cold {name}", one)


def films(work: Path, options: argparse.Namespace, told: Callable[[str, dict[str, float]], None]) -> None:
    """An episode, its bare films, and a long signal. The first round opens files, and does not count."""
    with chromium("--disable-gpu") as browser:
        pages = Pages(browser, sl.open(work / "episode"), work / "labels")
        sides: dict[str, tuple[str, Any]] = {"bare": ("bare", of_bare), "episode": ("seq?id=ep", of_episode)}
        sides["heatmap"] = ("seq?id=long", of_signal)
        sides["curves"] = ("seq?id=long&dims=wide:0-15", of_signal)
        for number in range(options.rounds + 1):
            for name, (path, work_of) in sides.items():
                one = pages.open(path, work_of)
                if number:
                    told(name, one)


def rerun(work: Path, _: argparse.Namespace, told: Callable[[str, dict[str, float]], None]) -> None:
    """The same episode in Rerun's web viewer, once: to open it takes longer than everything else here."""
    if not (work / "rerun").exists():
        sl.convert(sl.open(work / "episode").where(ids=["ep"]), work / "rerun", to="rerun")
    site, port = free(), free()
    program = str(Path(sys.executable).with_name("rerun"))
    command = [program, str(work / "rerun" / "ep.rrd"), "--serve-web", "--bind", "127.0.0.1"]
    command += ["--web-viewer-port", str(site), "--port", str(port)]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
        chromium("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist") as browser,
    ):
        try:
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", site), 1):
                    break
                time.sleep(0.1)
            context = browser.new_context(viewport={"width": 1280, "height": 860})
            page = context.new_page()
            page.set_default_timeout(0)
            received = counting(context, page)
            begin = time.perf_counter()
            address = f"http://127.0.0.1:{site}/?url=rerun%2Bhttp://127.0.0.1:{port}/proxy&renderer=webgl"
            page.goto(address, wait_until="commit")
            while True:
                with suppress(BrowserError):
                    if colourful(page.screenshot(timeout=20_000)):
                        break
                time.sleep(0.1)
            one = {"opened": passed(begin), "bytes": float(received[0])}
            told("rerun", one)
            told("rerun", {**one, "move": moved(page, {"x": 200, "y": 740, "width": 1040, "height": 30})})
        finally:
            server.terminate()


PARTS = {"data": data, "tables": tables, "episode": films, "rerun": rerun}


def part_of(name: str, work: Path, options: argparse.Namespace, limit: float) -> tuple[list[Any], str]:
    """What a part told, and why it did not come to its end; ended with all that it started when its time is over."""
    answers = work / f"{name}.jsonl"
    answers.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--part", name, "--work", str(work), "--rows", str(options.rows)]
    command += ["--frames", str(options.frames), "--rounds", str(options.rounds)]
    log = work / f"{name}.log"
    with log.open("w") as file, subprocess.Popen(command, stderr=file, start_new_session=True) as process:
        try:
            code, why = process.wait(limit), ""
        except subprocess.TimeoutExpired:
            code, why = 0, f"ended after {limit:.0f} s"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if code:
        last = log.read_text().strip().splitlines() or [""]
        why = f"failed: {last[-1][:200]}"
        print(log.read_text(), file=sys.stderr)
    lines = answers.read_text().splitlines() if answers.exists() else []
    return [json.loads(line) for line in lines], why


def told_into(place: Path) -> Callable[[str, dict[str, float]], None]:
    """Keeps what a part tells, line by line, so that nothing is lost when its time is over."""

    def told(name: str, one: dict[str, float]) -> None:
        with place.open("a") as file:
            file.write(json.dumps([name, one]) + "\n")

    return told


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Of each number, over the rounds."""
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: statistics.median(one[name] for one in rounds if name in one) for name in names}


def measure(
    work: Path, options: argparse.Namespace
) -> tuple[dict[str, dict[str, float]], dict[str, str], dict[str, int]]:
    """All numbers by side, what did not come to its end, and how many rounds each side had."""
    sides: dict[str, list[dict[str, float]]] = {}
    ended: dict[str, str] = {}
    for name, seconds in LIMITS.items():
        limit = seconds * options.patience
        print(f"{name}: at most {limit:g} s ...", file=sys.stderr)
        answers, why = part_of(name, work, options, limit)
        if why:
            ended[name] = why
        for side, one in answers:
            sides.setdefault(side, []).append(one)
    rounds = {name: len(one) for name, one in sides.items()}
    return {name: medians(one) for name, one in sides.items()}, ended, rounds


TITLES = {
    "few": "table of 1,000", "many": "table of {rows:,}", "filtered": "the same, filtered", "deep": "far behind in it",
    "cold few": "1,000, the first time", "cold many": "{rows:,}, the first time", "bare": "five bare films",
    "episode": "5 films, 60 signals", "rerun": "the same in Rerun {rerun}", "heatmap": "[20000, 60] as a heatmap",
    "curves": "16 of its 60 as curves",
}  # fmt: skip


def page_of(report: dict[str, Any], checks: list[dict[str, Any]]) -> str:
    """The report as Markdown."""
    lines = [
        "# The viewer",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}; load {report['load_before']:.1f} before;",
    ]
    lines += [f"Chromium without a GPU, medians of up to {report['asked']} rounds, milliseconds."]
    lines += ["`benchmarks/viewer.py` writes this page and says how it measures.", ""]
    lines += [
        "| page | rounds | first rows | all of it, or open | a seek | until it is drawn | a move of the mouse | kB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, title in TITLES.items():
        one = report["sides"].get(name)
        if one is None:
            continue
        cells = [one.get("first"), one.get("all", one.get("opened"))]
        cells += [one.get(what) for what in ("call", "frame", "move")]
        texts = ["" if cell is None else f"{cell:.1f}" if cell < 20 else f"{cell:.0f}" for cell in cells]
        texts = [str(report["rounds"][name]), *texts, f"{one['bytes'] / 1000:,.0f}"]
        lines.append(f"| {title.format(rows=report['rows'], rerun=report['rerun'])} | {' | '.join(texts)} |")
    if report["ended"]:
        lines += ["", *(f"- {name}: {why}." for name, why in report["ended"].items())]
    return "\n".join([*lines, *verdicts(checks)]) + "\n"


def ratio(sides: dict[str, dict[str, float]], one: str, other: str, what: str) -> float | None:
    """One side by another; None where one of them has no number."""
    above, below = sides.get(one, {}).get(what), sides.get(other, {}).get(what)
    return None if above is None or not below else above / below


def main() -> None:
    """Measure, and write the page."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--light", "--small", action="store_true", help="little data, one round")
    asked.add_argument("--work", type=Path, help="keep the data there, and take what is there")
    asked.add_argument("--rows", type=int, default=0, help="of the large table: 1000000, or 20000 with --light")
    asked.add_argument("--frames", type=int, default=0, help=f"of each film: {FRAMES}, or 60 with --light")
    asked.add_argument("--rounds", type=int, default=0, help="at most: 3, or 1 with --light")
    asked.add_argument("--patience", type=float, default=1, help="so many times the limits, on a machine that is busy")
    asked.add_argument("--out", type=Path, default=HERE / "results" / "viewer.json")
    asked.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = asked.parse_args()
    options.rows = options.rows or (20_000 if options.light else 1_000_000)
    options.frames = options.frames or (60 if options.light else FRAMES)
    options.rounds = options.rounds or (1 if options.light else 3)
    if options.part:
        PARTS[options.part](options.work, options, told_into(options.work / f"{options.part}.jsonl"))
        return
    report: dict[str, Any] = {**conditions(), "rows": options.rows, "asked": options.rounds}
    with suppress(PackageNotFoundError):
        report["rerun"] = version("rerun-sdk")
    report.setdefault("rerun", "")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as passing:
        work = options.work or Path(passing)
        work.mkdir(parents=True, exist_ok=True)
        report["sides"], report["ended"], report["rounds"] = measure(work, options)
    report["seconds"] = round(time.monotonic() - begin, 1)
    sides, checks = report["sides"], Checks()
    checks.check("first useful paint, many to few", ratio(sides, "many", "few", "first"), 1.5, at_most=True)
    checks.check("the first time, many to few", ratio(sides, "cold many", "cold few", "first"), 1.5, at_most=True)
    checks.check("an episode to its bare films", ratio(sides, "episode", "bare", "opened"), 5, at_most=True)
    checks.check("an episode to Rerun's viewer", ratio(sides, "episode", "rerun", "opened"), 1, at_most=True)
    checks.check("a move of the mouse to Rerun's", ratio(sides, "episode", "rerun", "move"), 1, at_most=True)
    checks.check("bytes to Rerun's", ratio(sides, "episode", "rerun", "bytes"), 1, at_most=True)
    checks.check("a seek with 5 films and 60 signals, ms", sides.get("episode", {}).get("call"), 16, at_most=True)
    report["checks"] = checks
    save(options.out, report, page_of(report, checks))


if __name__ == "__main__":
    main()
