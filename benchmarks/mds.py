"""MDS folders: seqlake beside MosaicML Streaming's own classes, in one run on the same shards.

    PEERS=mosaicml benchmarks/peers/setup      once, before: the environment that is needed
    python benchmarks/mds.py                   everything, in minutes
    python benchmarks/mds.py --small           that each part works; its numbers mean little

How it is measured. Four folders: *tokens* (`bytes` of 128 and an `int`), *arrays* (16 kB of float32 and an `int`),
*files* (JPEG files of 224x224 as `bytes`) and *images* (the same as `jpeg`, delivered decoded). They are written by
seqlake; a test holds its files to the official writer's, byte for byte. All is warm.

*Sample by sample* is `dataset[i]`, a dictionary of Python values; of images decoded. *Batches* are 256 samples in
random order with arrays and numbers stacked: `Loader` here, torch's `DataLoader` with the best of 0 and 2 workers
there. Rounds alternate between both; the median of the rounds' ratios counts.

*Bucket*: a server on loopback that counts. A first epoch begins with nothing copied, and opening counts. *Cold* is one
sample of a shard that nothing is known of but its index. *Write* is samples a second from memory to the finished
folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loading.store import counts, serving
from pages import Checks, conditions, save, verdicts

import seqlake as sl
from seqlake.formats import mds
from seqlake.media import image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
BATCH = 256
COLUMNS = {
    "tokens": {"tokens": "bytes", "label": "int"},
    "arrays": {"x": "ndarray:float32:64,64", "label": "int"},
    "files": {"image": "bytes", "label": "int"},
    "images": {"image": "jpeg", "label": "int"},
}
ORDER, RANDOM, BATCHES = "sample by sample, in order", "sample by sample, random", "batches"


# ---- data


def samples(kind: str, count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    if kind == "tokens":
        tokens = random.integers(0, 50_000, (count, 64)).astype(np.uint16)
        return [{"tokens": tokens[n].tobytes(), "label": n} for n in range(count)]
    if kind == "arrays":
        arrays = random.standard_normal((count, 64, 64), dtype=np.float32)
        return [{"x": arrays[n], "label": n} for n in range(count)]
    coarse = random.integers(0, 256, (16, 14, 14, 3), dtype=np.uint8)
    pictures = [np.kron(one, np.ones((16, 16, 1), np.uint8)) + random.integers(0, 20, (224, 224, 3)) for one in coarse]
    files = [image.encode_jpeg(one.clip(0, 255).astype(np.uint8), quality=90) for one in pictures]
    return [{"image": files[n % len(files)], "label": n} for n in range(count)]


def write(folder: Path, kind: str, rows: list[dict[str, Any]], **options: Any) -> float:
    """Seconds to write a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    with sl.create(folder, COLUMNS[kind], format="mds", **options) as writer:
        for row in rows:
            writer.write(row)
    return time.perf_counter() - began


# ---- reading


def rate(made: Iterator[int], seconds: float) -> float:
    """Samples a second of something that yields how many it made; the first is not counted."""
    next(made)
    count, start = 0, time.perf_counter()
    for own in made:
        count += own
        if time.perf_counter() - start > seconds:
            break
    return count / (time.perf_counter() - start)


def ones(get: Callable[[int], Any], order: list[int]) -> Iterator[int]:
    while True:
        for at in range(0, len(order), 64):  # the clock is not looked at after each
            part = order[at : at + 64]
            for number in part:
                get(number)
            yield len(part)


def epochs(loader: sl.Loader) -> Iterator[int]:
    while True:
        for batch in loader:
            yield len(batch["label"])


def ours(folder: Path, kind: str, seconds: float) -> dict[str, float]:
    dataset = mds.scan(str(folder))
    get: Callable[[int], Any] = dataset.__getitem__
    if kind == "images":
        get = lambda number: image.decode(dataset[number]["image"])  # noqa: E731 - one line
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    return {
        ORDER: rate(ones(get, list(range(len(dataset)))), seconds),
        RANDOM: rate(ones(get, order), seconds),
        BATCHES: rate(epochs(sl.Loader(sl.scan(folder), window=None, batch_size=BATCH)), seconds),
    }


def reading(folder: Path, kind: str, args: argparse.Namespace) -> dict[str, Any]:
    rounds: list[dict[str, float]] = []
    for _ in range(args.rounds):
        mine = ours(folder, kind, args.seconds)
        theirs = peer(args, "read", folder, "--seconds", str(args.seconds))
        best: dict[str, float] = {}
        for one in theirs:
            if "rate" in one:
                best[one["what"]] = max(best.get(one["what"], 0.0), one["rate"])
        rounds.append({**{f"seqlake, {what}": found for what, found in mine.items()}, **best})
    return {
        "rates": {what: statistics.median(one[what] for one in rounds) for what in rounds[0]},
        "rounds": rounds,
    }


def ratio(found: dict[str, Any], mine: str, theirs: str) -> float | None:
    known = [one for one in found["rounds"] if theirs in one]
    return statistics.median(one[f"seqlake, {mine}"] / one[theirs] for one in known) if known else None


def peer(
    args: argparse.Namespace, *command: str | Path, variables: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """What the official package's process says; nothing where there is no such environment."""
    python = args.environments / ".venv-mosaicml" / "bin" / "python"
    if not python.exists():
        return []
    done = subprocess.run(
        [python, "-W", "ignore", HERE / "peers" / "mosaicml_samples.py", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **(variables or {})},
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    return found


# ---- writing, starting, a bucket


def writing(folder: Path, rows: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    given = folder / "given"
    given.mkdir()
    (given / "columns.json").write_text(json.dumps(COLUMNS["tokens"]))
    tokens = np.frombuffer(b"".join(row["tokens"] for row in rows), np.uint16).reshape(len(rows), -1)
    np.savez(given / "samples.npz", tokens=tokens, label=np.arange(len(rows)))
    found: dict[str, Any] = {}
    for compression in (None, "zstd"):
        mine, theirs = [], []
        for _ in range(args.rounds):
            mine.append(len(rows) / write(folder / "written", "tokens", rows, compression=compression))
            chosen = [] if compression is None else ["--compression", compression]
            theirs += [one["rate"] for one in peer(args, "write", given, *chosen)]
        found[compression or "none"] = {
            "seqlake": statistics.median(mine),
            "MDSWriter": statistics.median(theirs) if theirs else None,
            "ratio": statistics.median(a / b for a, b in zip(mine, theirs, strict=False)) if theirs else None,
        }
    return found


def starting(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    code = (
        "import json, time\nbegan = time.perf_counter()\nimport seqlake as sl\nloader_class = sl.Loader\n"
        "imported = time.perf_counter() - began\nbegan = time.perf_counter()\n"
        f"next(iter(sl.Loader(sl.scan({str(folder)!r}), window=None, batch_size={BATCH})))\n"
        "print(json.dumps({'importing': imported, 'first_batch': time.perf_counter() - began}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    theirs = peer(args, "start", folder)
    return {"seqlake": json.loads(done.stdout), "StreamingDataset": theirs[0] if theirs else None}


def bucket(folder: Path, kinds: list[str], args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"epochs": {}, "cold": {}}
    with serving() as store:
        for kind in kinds:
            store.put(folder / kind, kind)
            rounds = []
            for _ in range(args.rounds):
                mine = first_epoch(store.uri(kind), store.storage, folder / "cache")
                theirs = peer(args, "remote", store.uri(kind), folder / "theirs", variables=store.environment)
                best = max((one["rate"] for one in theirs if "rate" in one), default=None)
                rounds.append({"seqlake": mine, "StreamingDataset": best})
            found["epochs"][kind] = rounds
        for name, compression in (("uncompressed", None), ("zstd", "zstd")):
            rows = samples("arrays", args.cold)
            write(folder / "cold", "arrays", rows, compression=compression, size_limit="64mb")
            store.put(folder / "cold", f"cold-{name}")
            found["cold"][name] = cold(folder / "cold", store.uri(f"cold-{name}"), store.storage, store.endpoint)
    return found


def first_epoch(uri: str, storage: dict[str, str], cache: Path) -> float:
    shutil.rmtree(cache, ignore_errors=True)
    began, count = time.perf_counter(), 0
    loader = sl.Loader(
        sl.scan(uri, storage=storage), window=None, batch_size=BATCH, cache=sl.Cache(cache, limit="20 GB")
    ).tail("pad")
    for batch in loader:
        count += int(batch["valid"].sum())
    return count / (time.perf_counter() - began)


def cold(folder: Path, uri: str, storage: dict[str, str], endpoint: str) -> dict[str, int]:
    """Requests and bytes of one sample in the middle of a shard; the least is header, offsets and sample."""
    dataset = mds.scan(uri, storage=storage)
    _ = dataset.schema
    before = counts(endpoint)
    entry = dataset.index.entries[0]
    sample = dataset[entry.samples // 2]
    after = counts(endpoint)
    stored = entry.raw if entry.zipped is None else entry.zipped
    least = stored.size
    if entry.zipped is None:  # the first offset is where offsets and header end; 64 bytes may belong to a longer header
        head = int.from_bytes((folder / stored.name).read_bytes()[4:8], "little")
        least = head + 64 + sample["x"].nbytes + 8
    return {
        "requests": after["requests"] - before["requests"],
        "bytes": after["bytes"] - before["bytes"],
        "least_bytes": least,
        "shard_bytes": stored.size,
    }


# ---- the page


def conclusions(report: dict[str, Any]) -> Checks:
    checks = Checks()
    read, local, stream = report["read"], "LocalDataset", "StreamingDataset"
    for what in (ORDER, RANDOM):
        theirs = f"{local}, {what}"
        checks.check(f"tokens, {what}, of {local}", ratio(read["tokens"], what, theirs), 10)
        theirs = f"{stream}, sample by sample, epoch"
        checks.check(f"tokens, {what}, of {stream}'s epoch", ratio(read["tokens"], what, theirs), 30)
    for kind, target in (("tokens", 20), ("arrays", 5)):
        checks.check(f"{kind}, batches, of {local}", ratio(read[kind], BATCHES, f"{local}, batches"), target)
    for kind, rounds in report.get("bucket", {}).get("epochs", {}).items():
        ratios = [one["seqlake"] / one["StreamingDataset"] for one in rounds if one["StreamingDataset"]]
        checks.check(f"{kind}, first epoch from a bucket", statistics.median(ratios) if ratios else None, 2)
    for name, target in (("none", 3), ("zstd", 1.6)):
        checks.check(f"writing tokens, compression {name}", report["write"][name]["ratio"], target)
    for name, requests in (("uncompressed", 2), ("zstd", 1)):
        one = report.get("bucket", {}).get("cold", {}).get(name)
        if one:
            checks.check(f"cold sample, {name}, requests", one["requests"], requests, at_most=True)
            checks.check(f"cold sample, {name}, bytes of the least", one["bytes"] / one["least_bytes"], 1, at_most=True)
    return checks


def page(report: dict[str, Any]) -> str:
    lines = [
        "# MDS",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}. Samples a second; `benchmarks/mds.py` writes this",
        "page and says how it measures.",
        "",
        "| folder | what | samples/s |",
        "|---|---|---|",
    ]
    for kind, found in report["read"].items():
        lines += [f"| {kind} | {what} | {value:,.0f} |" for what, value in found["rates"].items()]
    lines += ["", "| writing tokens | seqlake | MDSWriter |", "|---|---|---|"]
    for name, one in report["write"].items():
        lines.append(f"| compression {name} | {one['seqlake']:,.0f} | {one['MDSWriter'] or 0:,.0f} |")
    lines += ["", "| start | import, s | first batch, s |", "|---|---|---|"]
    for name, one in report["start"].items():
        if one:
            lines.append(f"| {name} | {one['importing']:.2f} | {one['first_batch']:.2f} |")
    if "bucket" in report:
        lines += ["", "| first epoch from a bucket | seqlake | StreamingDataset |", "|---|---|---|"]
        for kind, rounds in report["bucket"]["epochs"].items():
            mine = statistics.median(one["seqlake"] for one in rounds)
            theirs = statistics.median(one["StreamingDataset"] or 0 for one in rounds)
            lines.append(f"| {kind} | {mine:,.0f} | {theirs:,.0f} |")
        lines += ["", "| one cold sample | requests | bytes | of a shard of |", "|---|---|---|---|"]
        for name, one in report["bucket"]["cold"].items():
            lines.append(f"| {name} | {one['requests']} | {one['bytes']:,} | {one['shard_bytes']:,} |")
    return "\n".join([*lines, *verdicts(report["checks"])]) + "\n"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--counts", type=int, nargs=4, default=[120_000, 12_000, 12_000, 4_000], metavar="N")
    parser.add_argument("--written", type=int, default=600_000, help="samples that are written: more than one shard")
    parser.add_argument("--cold", type=int, default=4_000, help="samples of the folder that one is read of")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement in each round")
    parser.add_argument("--environments", type=Path, default=HERE, help="the folder that was given to peers/setup")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "mds.json")
    first, _ = parser.parse_known_args()
    if first.small:
        parser.set_defaults(counts=[5_000, 500, 500, 300], written=5_000, cold=600, rounds=1, seconds=0.3)
    return parser.parse_args()


def main() -> None:
    args = options()
    folder = Path(tempfile.mkdtemp(prefix="seqlake-mds-", dir=args.folder))
    try:
        sizes = dict(zip(COLUMNS, args.counts, strict=True))
        report: dict[str, Any] = {**conditions(), "samples": sizes, "small": args.small, "read": {}}
        for kind, count in sizes.items():
            # Several shards each, as larger data sets have.
            limit = max(
                1 << 16,
                sum(
                    64 + len(v) if isinstance(v, bytes) else getattr(v, "nbytes", 8)
                    for r in samples(kind, 16)
                    for v in r.values()
                )
                // 16
                * count
                // 6,
            )
            write(folder / kind, kind, samples(kind, count), size_limit=limit)
        for kind in COLUMNS:
            report["read"][kind] = reading(folder / kind, kind, args)
            print(kind, report["read"][kind]["rates"], flush=True)
        report["write"] = writing(folder, samples("tokens", args.written), args)
        report["start"] = starting(folder / "tokens", args)
        report["bucket"] = bucket(folder, ["tokens", "arrays", "files"], args)
        report["checks"] = conclusions(report)
    finally:
        shutil.rmtree(folder)
    save(args.out, report, page(report))


if __name__ == "__main__":
    main()
