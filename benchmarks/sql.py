"""SQL over signals and over small columns: `ds.sql` beside DuckDB's `read_parquet` on the same files, in one run.

    python benchmarks/sql.py                    150 MB of signals, and `--large` MB of them
    python benchmarks/sql.py --small            that it works, in seconds; its numbers mean little

How it is measured. Sequences of 150 to 450 steps, `action` [T, 12] and `obs_state` [T, 48] in float32 (`signals.py`),
in shards of the layout `training`, with a reward, a task and a flag a row. Both sides ask each question in turn, from a
connection and a dataset that are open already; a round is all questions, medians over the rounds count, and both must
give the same answer. The last column is the same question over an Arrow table that is there already: what DuckDB needs
where nothing is read. `--large` runs in a process of its own that may have half as much memory of its own
(`RLIMIT_DATA`) as the signals take, mapped files aside.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from pages import Checks, conditions, save, verdicts
from signals import DIMS

import seqlake as sl

HERE = Path(__file__).parent
SIGNALS = {
    "first value": "SELECT avg(list_extract(list_extract(obs_state, 1), 3)) FROM dataset",
    "last value": "SELECT max(action[-1][1]) FROM dataset",
    "steps": "SELECT task, avg(len(action)) FROM dataset GROUP BY task ORDER BY task",
    "a slice": "SELECT sum(len(list_slice(obs_state, 1, 20))) FROM dataset",
    "unnest": "SELECT count(*) FROM (SELECT unnest(action) AS a FROM dataset) WHERE a[2] > 0",
    "transform": "SELECT avg(list_sum(list_transform(action, lambda a: a[1]))) FROM dataset",
    "filter steps": "SELECT sum(len(list_filter(action, lambda a: a[3] > 0))) FROM dataset",
    "by a scalar": "SELECT avg(list_extract(list_extract(obs_state, 1), 3)) FROM dataset WHERE reward > {reward}",
    "of one task": "SELECT sequence_id, obs_state[1] FROM dataset WHERE task = 'pour' AND reward > {reward} ORDER BY 1",
    "the best": "SELECT sequence_id, action FROM dataset WHERE reward > {reward} ORDER BY reward DESC LIMIT 5",
}
SCALARS = {
    "count": "SELECT count(*) FROM dataset WHERE reward > {reward}",
    "group": "SELECT task, count(*), max(reward) FROM dataset GROUP BY task ORDER BY task",
    "top": "SELECT sequence_id, reward FROM dataset ORDER BY reward DESC LIMIT 10",
    "ids": "SELECT sequence_id FROM dataset WHERE success AND task = 'pick' AND reward > {reward} ORDER BY 1",
}


def write(place: Path, megabytes: float) -> None:
    """A dataset of about so many MB of signals."""
    random = np.random.default_rng(0)
    small = {"task": pa.string(), "reward": pa.float64(), "success": pa.bool_()}
    signals = {name: sl.Trajectory(dim=dim) for name, dim in DIMS.items()}
    with sl.create(place, sl.Schema({**small, **signals})).writer(bytes_per_shard=24 << 20) as writer:
        for number in range(math.ceil(megabytes * 1e6 / (300 * 4 * sum(DIMS.values())))):
            steps = int(random.integers(150, 451))
            cells = {name: random.standard_normal((steps, dim), np.float32) for name, dim in DIMS.items()}
            task = ["pick", "place", "pour"][number % 3]
            reward = float(random.random())
            writer.add(f"ep_{number:06}", task=task, reward=reward, success=number % 2 == 0, **cells)


def measured(place: Path, rounds: int, *, table: bool) -> dict[str, Any]:
    """Seconds of each question by each way."""
    ds, plain = sl.open(place), duckdb.connect()
    plain.execute(f"CREATE VIEW dataset AS FROM read_parquet('{place}/data/*.parquet')")
    ways = {"ours": ds.sql, "read_parquet": plain.sql}
    if table:
        held = duckdb.connect()
        held.register("dataset", ds.to_arrow())
        ways["arrow"] = held.sql
    seconds: dict[str, dict[str, list[float]]] = {name: {way: [] for way in ways} for name in (*SIGNALS, *SCALARS)}
    for number in range(rounds + 1):
        for name, query in {**SIGNALS, **SCALARS}.items():
            asked = query.format(reward=0.95 - number / 1000)  # not the very same question again
            answers = {}
            for way, ask in ways.items():
                start = time.perf_counter()
                answers[way] = ask(asked).fetchall()
                seconds[name][way] += [time.perf_counter() - start] * (number > 0)
            assert same(answers["ours"], answers["read_parquet"]), name
    return {name: {way: statistics.median(all_) for way, all_ in of.items()} for name, of in seconds.items()}


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two answers are equal but for the order in which numbers were added."""
    if len(one) != len(other):
        return False
    cells = zip((c for row in one for c in row), (c for row in other for c in row), strict=True)
    return all(math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) else near(a) == near(b) for a, b in cells)


def near(cell: Any) -> Any:
    """Lists of both kinds as lists."""
    return [near(one) for one in cell] if isinstance(cell, (list, tuple)) else cell


def mean(found: dict[str, Any], names: dict[str, str]) -> float:
    """The geometric mean of read_parquet's time to ours."""
    return math.exp(statistics.mean(math.log(found[n]["read_parquet"] / found[n]["ours"]) for n in names))


def page(report: dict[str, Any]) -> str:
    """The page."""
    where = f"{report['when']}, {report['machine']}, {report['python']}; load {report['load_before']:.1f} before"
    lines = [
        "# SQL beside read_parquet",
        "",
        f"{where}; DuckDB {report['duckdb']}. Milliseconds; the ratio is read_parquet's time to ours.",
        "`benchmarks/sql.py` writes this page and says how it measures.",
    ]
    for size in ("small", "large"):
        found = report.get(size)
        if not found:
            continue
        limit = "" if size == "small" else f", {report['limit']:.0f} MB of memory of its own allowed"
        lines += ["", f"## {report[f'{size}_megabytes']:.0f} MB of signals{limit}", ""]
        lines += ["| question | ds.sql | read_parquet | ratio | an Arrow table |", "|---|---|---|---|---|"]
        for name, of in found.items():
            arrow = f"{of['arrow'] * 1e3:.1f}" if "arrow" in of else ""
            ratio = of["read_parquet"] / of["ours"]
            lines.append(
                f"| {name} | {of['ours'] * 1e3:.1f} | {of['read_parquet'] * 1e3:.1f} | {ratio:.2f} | {arrow} |"
            )
    return "\n".join([*lines, *verdicts(report["checks"])]) + "\n"


def checks(report: dict[str, Any]) -> Checks:
    """What was to be reached."""
    reached = Checks()
    for size in ("small", "large"):
        found = report.get(size)
        if found:
            ratios = [found[name]["read_parquet"] / found[name]["ours"] for name in SIGNALS]
            reached.check(f"{size}: signals, geometric mean", mean(found, SIGNALS), 3)
            reached.check(f"{size}: signals, the least", min(ratios), 1)
            reached.check(f"{size}: small columns, geometric mean", mean(found, SCALARS), 0.95)
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--megabytes", type=float, default=150)
    parser.add_argument("--large", type=float, default=3000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sql.json")
    parser.add_argument("--limited", nargs=2, help=argparse.SUPPRESS)  # place, MB: the process with little memory
    args = parser.parse_args()
    if args.limited:
        limit = int(float(args.limited[1]) * 1e6)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        print(json.dumps(measured(Path(args.limited[0]), max(args.rounds // 2, 1), table=False)))
        return
    if args.small:
        args.megabytes, args.large, args.rounds = 8, 0, 1
    folder = Path(tempfile.mkdtemp(prefix="seqlake-sql-", dir=args.folder))
    report: dict[str, Any] = {**conditions(), "duckdb": duckdb.__version__, "limit": args.large / 2}
    report |= {"small_megabytes": args.megabytes, "large_megabytes": args.large}
    try:
        write(folder / "small", args.megabytes)
        report["small"] = measured(folder / "small", args.rounds, table=True)
        if args.large:
            write(folder / "large", args.large)
            command = [sys.executable, __file__, "--rounds", str(args.rounds), "--limited", str(folder / "large")]
            done = subprocess.run([*command, str(args.large / 2)], check=True, stdout=subprocess.PIPE, text=True)
            report["large"] = json.loads(done.stdout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report["checks"] = checks(report)
    save(args.out, report, page(report))


if __name__ == "__main__":
    main()
