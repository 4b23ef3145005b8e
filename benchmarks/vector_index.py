"""What an index of vectors costs and finds, beside looking at all of them.

Prints a table and writes `benchmarks/results/vector-index.json` and `.md`.

    python benchmarks/vector_index.py            2 million vectors of 128: a minute, 3 GB of disk and of memory
    python benchmarks/vector_index.py --small    50 000: some seconds

How it is measured. Vectors lie around some thousand centres, as embeddings do, which differ in how many there are and
how far they spread; those that are asked for are others of the same kind. `sl.vector_index` is made once in an empty
cache, by cosine and for the recall that it promises by default; seconds and CPU seconds are of all that it does, the
measuring of its recall included. Recall@10 is the part of the ten nearest that `sl.nearest` finds by the index, of
those that it finds without, one vector after the other; medians of their times, after one of each that does not count.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pages import conditions, save

import seqlake as sl

if TYPE_CHECKING:
    from numpy.typing import NDArray

HERE = Path(__file__).parent
DIM, K, BATCH = 128, 10, 50_000


def drawn(random: np.random.Generator, centres: NDArray[Any], count: int) -> NDArray[np.float32]:
    """[count, D] vectors around the centres, of which the first have most."""
    which = (len(centres) * random.random(count) ** 2).astype(np.int64)
    spread = (0.2 + 0.6 * random.random(count, dtype=np.float32))[:, None]
    noise = random.standard_normal((count, DIM), dtype=np.float32)
    return np.asarray(centres[which] + spread * noise, np.float32)


def make(folder: Path, count: int, asked: int) -> NDArray[np.float32]:
    """A dataset of so many vectors; others to ask for."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((max(16, round(count**0.5)), DIM), dtype=np.float32)
    ds = sl.create(folder, sl.Schema({"embedding": sl.Embedding(dim=DIM)}))
    with ds.writer() as writer:
        for first in range(0, count, BATCH):
            some = min(BATCH, count - first)
            numbers = pa.array(drawn(random, centres, some).reshape(-1))
            names = pa.array([f"v_{at:08d}" for at in range(first, first + some)])
            cells = pa.FixedSizeListArray.from_arrays(numbers, DIM).cast(ds.schema["embedding"].arrow)
            writer.add_batch(pa.record_batch({"sequence_id": names, "embedding": cells}))
    return drawn(random, centres, asked)


def timed(ds: Any, asked: NDArray[np.float32], **options: Any) -> tuple[list[set[int]], float]:
    """The ten nearest of each, and the median of the seconds that one takes."""
    sl.nearest(ds, "embedding", asked[0], k=K, **options)
    found, seconds = [], []
    for vector in asked:
        began = time.perf_counter()
        found.append({one.row for one in sl.nearest(ds, "embedding", vector, k=K, **options)})
        seconds.append(time.perf_counter() - began)
    return found, statistics.median(seconds)


def measured(folder: Path, *, count: int, asked: int) -> dict[str, Any]:
    """All figures."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    vectors = make(folder / "vectors", count, asked)
    ds = sl.open(folder / "vectors")
    began, busy = time.perf_counter(), time.process_time()
    index = sl.vector_index(ds, "embedding")
    built = {"build_seconds": time.perf_counter() - began, "build_cpu_seconds": time.process_time() - busy}
    print(index, built, flush=True)
    exact, whole = timed(ds, vectors)
    near, quick = timed(ds, vectors, index=index)
    shared = sum(len(one & other) for one, other in zip(exact, near, strict=True))
    return {
        "vectors": count,
        "asked": asked,
        **built,
        "vectors_bytes": sum(shard.nbytes for shard in ds.shards()),
        "index_bytes": sum(path.stat().st_size for path in (folder / "cache").rglob("*") if path.is_file()),
        "lists": index.lists,
        "probes": index.probes,
        "recall_of_20_promised": index.recall,
        "recall_of_10": shared / (K * asked),
        "exact_seconds": whole,
        "index_seconds": quick,
        "times_faster": whole / quick,
    }


def page(report: dict[str, Any]) -> str:
    """The figures as a page."""
    rows = [
        ("build, seconds", f"{report['build_seconds']:.0f}"),
        ("build, CPU seconds", f"{report['build_cpu_seconds']:.0f}"),
        ("vectors on disk, MB", f"{report['vectors_bytes'] / 1e6:,.0f}"),
        ("index on disk, MB", f"{report['index_bytes'] / 1e6:,.0f}"),
        ("lists, and how many one question looks at", f"{report['lists']:,}, {report['probes']:,}"),
        ("recall@20 as the index says it", f"{report['recall_of_20_promised']:.3f}"),
        ("recall@10", f"{report['recall_of_10']:.3f}"),
        ("one question, exact, ms", f"{report['exact_seconds'] * 1e3:.1f}"),
        ("one question by the index, ms", f"{report['index_seconds'] * 1e3:.1f}"),
        ("times as fast as the exact search", f"{report['times_faster']:.1f}"),
    ]
    lines = [
        "# An index of vectors",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}, load {report['load_before']:.1f} before.",
        f"{report['vectors']:,} vectors of {DIM} by cosine, {report['asked']} asked for.",
        "`benchmarks/vector_index.py` writes this page and says how it measures.",
        "",
        "| | found |",
        "|---|---|",
        *(f"| {what} | {figure} |" for what, figure in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="little data")
    parser.add_argument("--vectors", type=int, default=2_000_000)
    parser.add_argument("--asked", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "vector-index.json")
    args = parser.parse_args()
    sizes = {"count": 50_000, "asked": 20} if args.small else {"count": args.vectors, "asked": args.asked}
    folder = Path(tempfile.mkdtemp(prefix="seqlake-vectors-", dir=args.folder))
    try:
        report = {**conditions(), **measured(folder, **sizes)}
    finally:
        shutil.rmtree(folder)
    save(args.out, report, page(report))


if __name__ == "__main__":
    main()
