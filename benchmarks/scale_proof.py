"""How seqlake grows: 10^6 sequences in 10^4 shards for real, requests to a store, and 10^5 commits of 10^8 sequences.

Prints a table and writes `benchmarks/results/scale-proof.json` and `scale-proof.md`; `docs/design/scale.md` says what
follows from it.

    python benchmarks/scale_proof.py            some ten minutes, 8 GB of disk and of memory
    python benchmarks/scale_proof.py --small    a minute

How it is measured.

- *Real*: all bytes are there, on a disk whose cache holds them. Every act runs once, in the order of the table, in one
  fresh process that has imported all it needs. Memory is what the process had at most during the act, less what it had
  before. Seconds are of the wall and of the processor; other work on the machine shows in the first only.
- *A store*: an S3-speaking server on loopback, each of whose answers is made to take 20 ms. Requests are counted where
  they leave the process. Round trips are the most requests none of which began before another had ended: what a
  store's latency is multiplied by.
- *Simulated*: records, checkpoint and index file are those that so many commits leave, made by the product's code; the
  shards themselves are not there, and nothing that is measured opens one. What ranks need comes from the very planner
  that a loader asks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loading import simulated
from loading.asked import Asked
from loading.store import serving
from pages import Checks, conditions, save, verdicts

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
WINDOW = sl.Window({"action": range(4)}, edges="pad")
BATCH = 16
LATENCY = 0.02  # seconds of each request to the store


def row(name: str) -> dict[str, Any]:
    return {"sequence_id": name, "action": np.zeros((3, 2), np.float32), "number": -1, "reward": 1.0}


# ---- one act
def memory() -> tuple[int, int]:
    """Bytes that this process has, and had at most since `forget`."""
    said = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(said["VmRSS"].split()[0]) << 10, int(said["VmHWM"].split()[0]) << 10


class Acts:
    """Runs acts and says what each took."""

    def __init__(self, *, latency: float = 0.0, **about: Any) -> None:
        self.about = about
        self.latency = latency

    def run(self, name: str, act: Callable[[], Any]) -> Any:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, _ = memory()
        began, used = time.perf_counter(), time.process_time()
        with Asked(latency=self.latency) as asked:
            result = act()
        seconds, cpu = time.perf_counter() - began, time.process_time() - used
        line = {**self.about, "act": name, "seconds": seconds, "cpu": cpu, "peak": max(0, memory()[1] - before)}
        line |= {"requests": asked.count, "trips": asked.round_trips} if asked.count else {}
        print(json.dumps(line), flush=True)
        return result


def loaded(place: str, **options: Any) -> sl.Loader:
    return sl.Loader(sl.open(place, **options), window=WINDOW, batch_size=BATCH)


def every_act(acts: Acts, place: str, **options: Any) -> None:
    """What people do with a table, in order."""
    count = len(sl.open(place, **options))
    ds = acts.run("open", lambda: sl.open(place, **options))
    acts.run("one sequence by id", lambda: ds[f"ep_{count // 2:010d}"]["action"])
    acts.run("another one", lambda: ds[f"ep_{count // 2 + 1:010d}"]["action"])
    acts.run("where, few shards", lambda: len(ds.where(f"number BETWEEN {count - 50} AND {count}")))
    acts.run("where, all shards", lambda: len(ds.where("number % 1000 = 7")))
    loader = acts.run("loader and plan", lambda: _planned(loaded(place, **options)))
    acts.run("first batch", lambda: next(iter(loader)))
    state = loader.state_dict()
    again = loaded(place, **options)
    acts.run("resume to a batch", lambda: _resumed(again, state))
    ds = sl.open(place, **options)
    acts.run("append one", lambda: ds.append([row("new_1")]))
    acts.run("append another", lambda: ds.append([row("new_2")]))
    acts.run("compact", lambda: sl.compact(ds))
    acts.run("vacuum", lambda: ds.vacuum(older_than=timedelta(0)))
    assert len(sl.open(place, **options)) == count + 2


def _planned(loader: sl.Loader) -> sl.Loader:
    assert loader.plan().samples
    return loader


def _resumed(loader: sl.Loader, state: dict[str, Any]) -> None:
    loader.load_state_dict(state)
    next(iter(loader))


def warm() -> None:
    """Import what is imported at the first use."""
    with tempfile.TemporaryDirectory() as folder:
        simulated.real(Path(folder, "warm"), shards=2, per_shard=200, commits=1)
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            every_act(Acts(), str(Path(folder, "warm")))


# ---- the parts, each a process of its own
def part_real(place: str) -> None:
    warm()
    every_act(Acts(shards=len(sl.open(place).shards())), place)


def part_log(place: str) -> None:
    """A log of many commits."""
    with tempfile.TemporaryDirectory() as folder:
        simulated.simulated(Path(folder, "warm"), commits=200, per_shard=10)
        sl.open(Path(folder, "warm")).append([row("a")])
    acts = Acts()
    ds = acts.run("open", lambda: sl.open(place))
    newest = ds.version
    acts.run("a version of long ago", lambda: sl.open(place, version=1 + newest.id // 2))
    acts.run("ten minutes ago", lambda: sl.open(place, version=datetime.now(UTC) - timedelta(minutes=10)))
    acts.run("all versions", lambda: len(ds.versions()))
    acts.run("ids of all sequences", lambda: _unknown(ds))
    acts.run("append one", lambda: ds.append([row("new_1")]))
    acts.run("append another", lambda: ds.append([row("new_2")]))
    acts.run("tag", lambda: ds.tag("paper"))


def _unknown(ds: sl.Dataset) -> None:
    assert ds.source.find_ids(["nobody"])[0] == -1


def part_ranks(place: str, ranks: str, lanes: str) -> None:
    """One rank among many, then what all of them need together."""
    world, acts = int(ranks), Acts(ranks=int(ranks), lanes=int(lanes))
    shuffle = sl.Shuffle(lanes=int(lanes))
    window = sl.Window({"action": range(16)}, edges="pad")

    def made(rank: int) -> sl.Loader:
        options: dict[str, Any] = {"shuffle": shuffle, "rank": rank, "world_size": world}
        return sl.Loader(ds, window=window, batch_size=BATCH, **options)

    ds = acts.run("open", lambda: sl.open(place))
    loader = made(world // 3)
    engine = loader._engine  # noqa: SLF001 - what it asks its planner
    acts.run("lengths of all sequences", lambda: engine.survey)
    planner = acts.run("planner", engine.planner)
    position = engine.steps.samples // 2
    acts.run("samples of 64 steps", lambda: planner.samples(0, 0, np.arange(64)))
    acts.run("resume in the middle", lambda: planner.samples(0, position, np.arange(64)))
    plan = acts.run("plan", loader.plan)
    held = [plan.samples, plan.steps, plan.distinct, plan.shuffle_quality, plan.lanes, plan.block]
    facts = dict(zip(("samples", "steps", "distinct", "quality", "lanes", "block"), held, strict=True))
    facts["asked_lanes"] = int(lanes)
    shards = len(ds.shards())
    readers, most, sizes = np.zeros(shards, np.int64), [], np.array([shard.nbytes for shard in ds.shards()])
    some = np.linspace(0, world - 1, min(world, 512)).astype(int) if world > 512 else np.arange(world)
    began = time.perf_counter()
    for rank in some.tolist():
        visits = engine.planner(rank=rank).visits(0, 0)
        readers += np.bincount(visits.shards, minlength=shards) > 0
        most.append(visits.most())
    seconds = (time.perf_counter() - began) / len(some)
    scale = world / len(some)
    facts |= {
        "resident": memory()[0],
        "visits_seconds": seconds,
        "readers": float(readers.mean() * scale),
        "readers_most": float(readers.max() * scale),
        "in_use": float(np.mean(most)),
        "in_use_most": int(np.max(most)),
        "shards": shards,
        "shard_bytes": float(sizes.mean()),
        "windows_a_shard": plan.samples / shards,
        "index_bytes": sum(path.stat().st_size for path in Path(place, "_seqlake", "index").iterdir()),
    }
    print(json.dumps({"ranks": world, "act": "facts", **facts}), flush=True)


def part_store(folder: str, *sizes: str) -> None:
    """Requests to a store."""
    warm()
    os.environ["XDG_CACHE_HOME"] = folder
    with serving() as server:
        for shards in map(int, sizes):
            place = simulated.real(Path(folder, f"of-{shards}"), shards=shards, per_shard=20, commits=1)
            server.put(place, f"of-{shards}")
            loaded(server.uri(f"of-{shards}"), storage=server.storage)
            every_act(Acts(shards=shards, latency=LATENCY), server.uri(f"of-{shards}"), storage=server.storage)


PARTS = {"real": part_real, "log": part_log, "ranks": part_ranks, "store": part_store}


def child(part: str, *arguments: object) -> list[dict[str, Any]]:
    """The lines of a part."""
    command = [sys.executable, __file__, "--part", part, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=3600)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        raise SystemExit(f"{part} ended with {done.returncode} after {lines[-1:]}")
    return lines


def measured(folder: Path, *, small: bool) -> dict[str, Any]:
    """All parts."""
    few, many, per_shard = (10, 300, 20) if small else (10, 10_000, 100)
    commits, rows = (2_000, 100) if small else (100_000, 1_000)
    ranks = (64, 512) if small else (4_096, 4_096)
    report: dict[str, Any] = {"commits": commits, "rows": rows, "few": few, "many": many, "per_shard": per_shard}
    print("a store", flush=True)
    report["store"] = child("store", folder, 10, 100, *([] if small else [1_000]))
    print("real shards", flush=True)
    report["real"] = []
    for shards in (few, many):
        place = simulated.real(folder / f"real-{shards}", shards=shards, per_shard=per_shard, commits=2)
        report["real"] += child("real", place)
        shutil.rmtree(place)
    print("a long log", flush=True)
    began = time.perf_counter()
    place = simulated.simulated(folder / "simulated", commits=commits, per_shard=rows)
    report["simulated_in"] = time.perf_counter() - began
    report["ranks"] = []
    for lanes in (0, ranks[0]):
        report["ranks"] += child("ranks", place, ranks[0], lanes)
    report["log"] = child("log", place)
    return report


# ---- the page
def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def side_by_side(lines: list[dict[str, Any]], keys: dict[str, str]) -> list[str]:
    """Acts by shards: one group of columns for each number of shards."""
    sizes = list(dict.fromkeys(one["shards"] for one in lines))
    head = [f"{what}, {size:,}" for size in sizes for what in keys.values()]
    table = ["| act | " + " | ".join(head) + " |", "|---" * (1 + len(head)) + "|"]
    for act in dict.fromkeys(one["act"] for one in lines):
        by = {one["shards"]: one for one in lines if one["act"] == act}
        cells = [number(by[size].get(key, 0) / (1e6 if key == "peak" else 1)) for size in sizes for key in keys]
        table.append(f"| {act} | " + " | ".join(cells) + " |")
    return table


def conclusions(report: dict[str, Any]) -> Checks:
    checks = Checks()
    store = {(one["shards"], one["act"]): one for one in report["store"]}
    sizes = sorted({one["shards"] for one in report["store"]})
    most = sizes[-1]
    trips = store[most, "open"].get("trips", 0) - store[sizes[0], "open"].get("trips", 0)
    checks.check(f"round trips of `open` at {most} shards more than at {sizes[0]}", trips, 2, at_most=True)
    for act in ("one sequence by id", "where, few shards", "append one"):
        more = store[most, act]["requests"] - store[sizes[0], act]["requests"]
        checks.check(f"requests of `{act}` at {most} shards more than at {sizes[0]}", more, 2, at_most=True)
    for act, constant in (("where, all shards", 3), ("compact", 12), ("vacuum", 1)):
        more = store[most, act]["requests"] - store[sizes[0], act]["requests"]
        checks.check(f"requests of `{act}` for each shard", more / (most - sizes[0]), constant, at_most=True)
    return checks


def page(report: dict[str, Any]) -> str:
    log = [
        f"| {one['act']} | {number(one['seconds'])} | {number(one['cpu'])} | {number(one['peak'] / 1e6)} |"
        for one in report["log"]
    ]
    lines = [
        "# Growth",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}. Load {report['load_before']:.1f} before.",
        "`benchmarks/scale_proof.py` writes this page and says how it measures; [what follows from",
        "it](../../docs/design/scale.md).",
        "",
        (
            f"## Real: {report['few'] * report['per_shard']:,} sequences in {report['few']:,} shards, and "
            f"{report['many'] * report['per_shard']:,} in {report['many']:,}"
        ),
        "",
        *side_by_side(report["real"], {"seconds": "seconds", "cpu": "CPU s", "peak": "MB"}),
        "",
        "## Requests to a store, 20 sequences a shard",
        "",
        *side_by_side(report["store"], {"requests": "requests", "trips": "round trips"}),
        "",
        f"## A log of {report['commits']:,} commits, {report['commits'] * report['rows']:,} sequences (simulated)",
        "",
        "| act | seconds | CPU s | MB |",
        "|---|---|---|---|",
        *log,
    ]
    for facts in (one for one in report["ranks"] if one["act"] == "facts"):
        mine = [one for one in report["ranks"] if one["act"] != "facts" and one["lanes"] == facts_of(facts)]
        lines += [
            "",
            (
                f"## One rank of {facts['ranks']:,}, {facts['lanes']} lanes of blocks of {facts['block']:,}: "
                f"{facts['samples']:,} windows (simulated)"
            ),
            "",
            "| act | seconds | CPU s | MB |",
            "|---|---|---|---|",
            *(
                f"| {one['act']} | {number(one['seconds'])} | {number(one['cpu'])} | {number(one['peak'] / 1e6)} |"
                for one in mine
            ),
            "",
            *together(facts),
        ]
    lines += verdicts(report["checks"])
    return "\n".join(lines) + "\n"


def together(facts: dict[str, Any]) -> list[str]:
    """What all ranks need."""
    windows = facts["ranks"] * BATCH
    resident, index = facts["resident"] / 1e9, facts["index_bytes"] / 1e9
    return [
        f"In the end the rank has {resident:.1f} GB, and of these as much as was touched of the {index:.1f} GB of",
        "index files, a map that all processes of a machine share; of a store they are read into memory.",
        "",
        f"A global batch of {windows:,} windows comes from {facts['distinct']:,.0f} sequences, {facts['quality']:.1%}",
        f"of what a uniform permutation mixes. A shard is read by {facts['readers']:.1f} ranks on average, by",
        f"{facts['readers_most']:.0f} at most; a rank has {facts['in_use']:.1f} shards in use,",
        f"{facts['in_use_most']} at most. At one step a second the ranks take {windows:,} windows a second: as many",
        "requests where windows are fetched one by one,",
        f"{whole(facts):,.1f} of {facts['shard_bytes'] / 1e6:.1f} MB where shards are fetched whole.",
    ]


def facts_of(facts: dict[str, Any]) -> int:
    """What was asked for: 0 for the default."""
    return int(facts["asked_lanes"])


def whole(facts: dict[str, Any]) -> float:
    """Shards a second that all ranks fetch at one step a second."""
    return facts["ranks"] * BATCH / facts["windows_a_shard"] * facts["readers"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="few shards and commits")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scale-proof.json")
    parser.add_argument(
        "--store", action="store_true", help="count requests anew, and keep the rest of the last report"
    )
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        PARTS[args.part[0]](*args.part[1:])
        return
    folder = Path(tempfile.mkdtemp(prefix="seqlake-scale-", dir=args.folder))
    try:
        if args.store:
            report = json.loads(args.out.read_text())
            report["store"] = child("store", folder, *sorted({one["shards"] for one in report["store"]}))
        else:
            report = {**conditions(), **measured(folder, small=args.small)}
        report["checks"] = conclusions(report)
    finally:
        shutil.rmtree(folder)
    save(args.out, report, page(report))


if __name__ == "__main__":
    main()
