"""Stores of l5kit: our reads and windows beside l5kit 1.5.0, on one store of 40 scenes, in one run.

    benchmarks/peers/setup                                  # once: makes .venv-l5kit
    python benchmarks/l5kit.py ../shared/data/lyft_single_scene.zarr

The store is the scene given, forty times joined. It writes `benchmarks/results/l5kit.json` and `l5kit.md`.

How it is measured. Rounds alternate: l5kit in a process of its own, then ours; medians count. Both may keep 32 MB:
l5kit of compressed chunks, ours of decoded ones. *Random scenes*: `get_scene_dataset(i)` in one random order, warm.
*Cold*: the store is opened anew for each. *Agents*: all of them, once scene by scene and once chunk by chunk. *Agent
windows*: history 10 and future 50 with availabilities and relative poses. l5kit's are single random samples of
`AgentDataset` with a stub rasteriser; ours are a whole shuffled epoch of a new loader over the same samples, with
decoding and opening in it (the scan and the selection are told apart), from the store and from what its tracks were
converted to.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from pages import Checks, conditions, save, verdicts

import seqlake as sl
from seqlake.compat.l5kit.editing import zarr_concat
from seqlake.compat.l5kit.poses import relative_poses
from seqlake.formats.l5kit.selecting import select_agents
from seqlake.formats.l5kit.store import open_store
from seqlake.formats.l5kit.windows import windows

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
CACHE = 32_000_000
HISTORY, FUTURE = 10, 50
COLUMNS = ("centroid", "yaw", "extent", "available")


def timed(work: Callable[[], int]) -> dict[str, float]:
    began, cpu = time.perf_counter(), time.process_time()
    count = work()
    return {"count": count, "wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def epoch(source: Any, *, width: int, first: int) -> int:
    """One shuffled epoch of a new loader; how many windows it had."""
    window = sl.Window(dict.fromkeys(COLUMNS, range(first, first + width)), stride=width if first == 0 else 1)
    loader = sl.Loader(source, window=window, batch_size=256, seed=0)
    loader = loader.map_batch(relative_poses(history=HISTORY, future=FUTURE))
    return sum(len(batch["target_positions"]) for batch in loader)


def ours(path: str, mask: np.ndarray, tracks: Path, *, reads: int) -> dict[str, Any]:
    warm = open_store(path, cache_bytes=CACHE)
    scenes = np.random.default_rng(0).integers(0, len(warm.scenes), reads).tolist()

    def random_scenes() -> int:
        for scene in scenes:
            warm.get_scene_dataset(scene)
        return len(scenes)

    def cold() -> int:
        for scene in scenes[: max(1, reads // 4)]:
            open_store(path, cache_bytes=CACHE).get_scene_dataset(scene)
        return max(1, reads // 4)

    def in_order() -> int:
        store = open_store(path, cache_bytes=CACHE)
        return sum(len(store.get_scene_dataset(scene).agents) for scene in range(len(store.scenes)))

    def by_chunk() -> int:
        return sum(len(rows) for rows in open_store(path, cache_bytes=CACHE).agents.each_chunk())

    width = HISTORY + 1 + FUTURE
    random_scenes()
    found: dict[str, Any] = {
        "random scenes": timed(random_scenes),
        "cold scenes": timed(cold),
        "agents, scene by scene": timed(in_order),
        "agents, chunk by chunk": timed(by_chunk),
        "selection": timed(lambda: len(select_agents(open_store(path)))),
    }
    sources: dict[str, Any] = {}

    def scan() -> int:
        sources["store"] = sl.scan(path, view="agents", mask=mask, history=HISTORY, future=FUTURE)
        return len(sources["store"])

    found["scan of the store"] = timed(scan)
    dataset = sl.open(tracks)
    sources["tracks"] = windows(dataset, history=HISTORY, future=FUTURE)
    found["windows from the store"] = timed(lambda: epoch(sources["store"], width=width, first=0))
    found["windows from tracks"] = timed(lambda: epoch(sources["tracks"], width=width, first=0))
    found["windows around every step of tracks"] = timed(lambda: epoch(dataset, width=width, first=-HISTORY))
    return found


def agree(path: str, mask: np.ndarray, expected: float) -> None:
    """Both speak of the same samples."""
    source = sl.scan(path, view="agents", mask=mask, history=HISTORY, future=FUTURE)
    width = HISTORY + 1 + FUTURE
    loader = sl.Loader(source, window=sl.Window(dict.fromkeys(COLUMNS, range(width)), stride=width), batch_size=256)
    total, count = 0.0, 0
    for batch in loader.map_batch(relative_poses(history=HISTORY, future=FUTURE)):
        total += float(np.abs(batch["target_positions"]).sum())
        count += len(batch["target_positions"])
    # l5kit was asked for a random part of them.
    assert 0.5 < total / count / expected < 2, (total / count, expected)


def size(folder: str | Path) -> int:
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def rate(found: dict[str, float], clock: str = "wall") -> float:
    return found["count"] / found[clock]


def conclusions(mine: dict[str, Any], theirs: dict[str, Any]) -> list[dict[str, Any]]:
    checks = Checks()
    for name, target in (("random scenes", 3), ("cold scenes", 3), ("agents, scene by scene", 2)):
        checks.check(f"{name}, times l5kit", mine[name]["rate"] / theirs[name]["rate"], target)
    base = theirs["agent windows"]["rate"]
    checks.check("agent windows from the store, times AgentDataset", mine["windows from the store"]["rate"] / base, 50)
    checks.check("agent windows from tracks, times AgentDataset", mine["windows from tracks"]["rate"] / base, 200)
    return checks


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: {
            "rate": median(rate(one[name]) for one in rounds),
            "rate_cpu": median(rate(one[name], "cpu") for one in rounds),
            "count": rounds[0][name]["count"],
        }
        for name in rounds[0]
        if isinstance(rounds[0][name], dict)
    }


def table(report: dict[str, Any]) -> str:
    mine, theirs = report["seqlake"], report["l5kit"]
    lines = [
        "# Stores of l5kit",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}; load {report['load_before']:.1f} before.",
        f"{report['scenes']} scenes, {report['agents']:,} agents. `benchmarks/l5kit.py` writes this page and says how",
        "it measures. Each a second of wall time, in brackets of CPU time.",
        "",
        "| | l5kit 1.5.0 | seqlake | ratio |",
        "|---|---|---|---|",
    ]
    pairs = [(name, name) for name in theirs if name in mine]
    pairs += [(name, "agent windows") for name in mine if name.startswith("windows")]
    for own, other in pairs:
        a, b = theirs[other], mine[own]
        lines.append(
            f"| {own} | {a['rate']:,.0f} ({a['rate_cpu']:,.0f}) | {b['rate']:,.0f} ({b['rate_cpu']:,.0f}) | "
            f"{b['rate'] / a['rate']:.1f} ({b['rate_cpu'] / a['rate_cpu']:.1f}) |"
        )
    lines += ["", "| on disk | MB |", "|---|---|"]
    lines += [f"| {name} | {count / 1e6:.1f} |" for name, count in report["sizes"].items()]
    alone = {name: mine[name] for name in ("selection", "scan of the store")}
    lines += ["", *(f"{name}: {one['count'] / one['rate']:.2f} s for {one['count']:,}." for name, one in alone.items())]
    return "\n".join([*lines, *verdicts(report["checks"])]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", type=Path, help="a store of l5kit, as lyft_single_scene.zarr")
    parser.add_argument("--copies", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reads", type=int, default=120, help="random scenes of a round")
    parser.add_argument("--samples", type=int, default=300, help="samples of AgentDataset of a round")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "l5kit.json")
    args = parser.parse_args()
    peer = os.environ.get("SEQLAKE_L5KIT", str(HERE / ".venv-l5kit" / "bin" / "python"))
    folder = Path(tempfile.mkdtemp(prefix="seqlake-l5kit-", dir=args.folder))
    try:
        head = conditions()
        path, tracks = str(folder / "joined.zarr"), folder / "tracks"
        zarr_concat([str(args.scene)] * args.copies, path)
        store = open_store(path)
        mask = select_agents(store)
        np.save(folder / "mask.npy", mask)
        sl.convert(path, folder / "scenes", progress=False)
        sl.convert(path, folder / "archive", progress=False, layout="archive")
        sl.convert(sl.scan(path, view="tracks", mask=mask), tracks, progress=False)
        epoch(windows(sl.open(tracks), history=HISTORY, future=FUTURE), width=HISTORY + 1 + FUTURE, first=0)  # imports
        command = [peer, str(HERE / "peers" / "l5kit_reads.py"), path, str(folder / "mask.npy")]
        command += [str(args.reads), str(args.samples), str(CACHE)]
        theirs, mine = [], []
        for _ in range(args.rounds):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            theirs.append(json.loads(done.stdout.strip().splitlines()[-1]))
            mine.append(ours(path, mask, tracks, reads=args.reads))
        agree(path, mask, theirs[0]["checksum"])
        sizes = {
            "store": size(path),
            "scene rows": size(folder / "scenes"),
            "scene rows, archive layout": size(folder / "archive"),
            "track rows": size(tracks),
        }
        report = {
            **head,
            "scenes": len(store.scenes),
            "agents": len(store.agents),
            "samples": theirs[0]["samples"],
            "sizes": sizes,
            "l5kit": medians(theirs),
            "seqlake": medians(mine),
            "rounds": {"l5kit": theirs, "seqlake": mine},
        }
    finally:
        shutil.rmtree(folder)
    report["checks"] = conclusions(report["seqlake"], report["l5kit"])
    save(args.out, report, table(report))


if __name__ == "__main__":
    main()
