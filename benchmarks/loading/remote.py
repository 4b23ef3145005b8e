"""Two epochs out of a bucket: bytes, requests and seconds, beside plain parallel GETs of the same objects."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loading.gets import plain_gets
from loading.runs import run_peer
from loading.store import BUCKET, COUNTS, Store, serving
from signals import make_arrays, save_arrays

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

WIDTH = 16
LATENCY, RATE = 0.02, 85e6  # seconds to the first byte, bytes a second of a request: what S3 tells to reckon with


def remote(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everybody's two epochs; ours as often as asked for, between GETs, and once more from a store that is far away."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))
    arrays = save_arrays(folder / "arrays", make_arrays(args.remote_sequences))
    with serving() as store:
        report = ours(args, arrays, folder, store)
        print(report, flush=True)
        report["peers"] = []
        for name in args.peers:
            found = of_peer(name, args, arrays, folder, store, workers=[2])  # nothing of who reads no bucket
            print(name, found, flush=True)
            report["peers"] += found
    with serving(latency=LATENCY, rate=RATE) as store:
        report["far"] = ours(args, arrays, folder, store)
        print(report["far"], flush=True)
    return report


def of_peer(
    name: str,
    args: argparse.Namespace,
    arrays: Path,
    folder: Path,
    store: Store,
    *,
    workers: list[int],
    **only: str,
) -> list[dict[str, Any]]:
    """A peer's epochs, `only` with some settings; its files are put into the bucket first."""
    own = folder / name
    plan: dict[str, Any] = {"arrays": str(arrays), "folder": str(own), "workers": workers, **only}
    written = own / f"windows-{WIDTH}"
    if not written.exists():
        failed = run_peer(name, {**plan, "tasks": [{"work": "write", "width": WIDTH}]}, args)
        if failed:
            return failed
    store.put(written.resolve(), name)
    plan |= {"uri": store.uri(name), "web": f"{store.endpoint}/{BUCKET}/{name}", "counts": store.endpoint + COUNTS}
    # Local files come first, so that what is imported at the first use is not timed.
    tasks = [{"work": work, "width": WIDTH, "batch": args.batch, "seconds": 0.1} for work in ("windows", "remote")]
    found = run_peer(name, {**plan, "tasks": tasks}, args, variables=store.environment)
    return [one for one in found if one.get("work") != "windows"]


def ours(args: argparse.Namespace, arrays: Path, folder: Path, store: Store) -> dict[str, Any]:
    first = of_peer("seqlake", args, arrays, folder, store, workers=[0])
    if failed := [one for one in first if "failed" in one]:
        return {"seqlake": failed}
    ways = [one["settings"] for one in first]  # each in a process of its own from here on, like the GETs
    data = (folder / "seqlake" / f"windows-{WIDTH}").resolve() / "data"
    sizes = {f"seqlake/data/{path.name}": path.stat().st_size for path in sorted(data.glob("*.parquet"))}
    rounds, gets, files, ratios, in_lanes, of_files = [], [], [], [], [], []
    for _ in range(args.remote_rounds):
        before = plain(store, sizes)
        rounds.append([])
        for way in ways:
            rounds[-1] += of_peer("seqlake", args, arrays, folder, store, workers=[0], settings=way)
        gets.append((before + plain(store, sizes)) / 2)
        with tempfile.TemporaryDirectory(dir=folder) as target:
            files.append(plain(store, sizes, target=Path(target)))
        if failed := [one for one in rounds[-1] if "failed" in one]:
            return {"seqlake": failed}
        # What is forgotten is compared with what stays in memory, what is kept in files with copies in a folder.
        in_memory, in_folder, soon = (one["epochs"][0] for one in rounds[-1])
        ratios.append(gets[-1] / in_memory["seconds"])
        in_lanes.append(gets[-1] / soon["seconds"])
        of_files.append(files[-1] / in_folder["seconds"])
    middle = sorted(range(len(ratios)), key=ratios.__getitem__)[len(ratios) // 2]
    both = [one["epochs"][0] for one in rounds[middle]]
    return {
        "objects": len(sizes),
        "object_bytes": sum(sizes.values()),
        "plain_gets_s": statistics.median(gets),
        "plain_gets_to_files_s": statistics.median(files),
        "of_plain_gets": statistics.median(ratios),
        "of_plain_gets_in_lanes": statistics.median(in_lanes),
        "of_gets_to_files": statistics.median(of_files),
        "all_of_plain_gets": ratios,
        "of_least_bytes": max(one["bytes"] for one in both) / sum(sizes.values()),
        "of_least_requests": max(one["requests"] for one in both) / len(sizes),
        "seqlake": rounds[middle],  # in memory, in a folder, in memory in another order
    }


def plain(store: Store, sizes: Mapping[str, int], *, target: Path | None = None) -> float:
    """Seconds of asking for all objects; forgotten, or each kept in a file."""
    from _running import ready_memory

    ready_memory(3 * sum(sizes.values()))
    return plain_gets(BUCKET, store.storage, sizes, target=target)
