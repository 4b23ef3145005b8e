"""SQL over signals and over small columns: `ds.sql` beside DuckDB's `read_parquet` on the same files, in one run.

    python benchmarks/sql.py                    150 MB of signals, and `--large` MB of them
    python benchmarks/sql.py --small            that it works, in seconds; its numbers mean little

How it is measured. Sequences of 150 to 450 steps, `action` [T, 12] and `obs_state` [T, 48] in float32 (`signals.py`),
in shards of the layout `training`, with a reward, a task and a flag a row. Both sides ask each question in turn, from
a connection and a dataset that are open already; a round is all questions, medians over the rounds count, and both
must give the same answer. The last column is the same question over an Arrow table that is there already: what DuckDB
needs where nothing is read. The first round is not counted: by then ours has the small columns in memory, up to 64
MiB of them, and read_parquet what it keeps, which is nothing of them; both read signals each time. `--large` asks
each side in a process of its own whose DuckDB may have half as much memory (`memory_limit`) as the signals take; a
question that fails there has no time, and counts where it is ours. The most memory that the process had of its own
meanwhile (`RssAnon`, files that are mapped aside) stands beside, and ours may not pass that limit.
"""

from __future__ import annotations

import argparse
import math
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
from pages import Checks, conditions, save, verdicts
from signals import DIMS

import seqlake as sl
from seqlake.errors import SeqlakeError
from seqlake.files import sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Times = dict[str, dict[str, float]]
Answers = dict[tuple[str, str], Any]
HERE = Path(__file__).parent
LONGEST = 300  # seconds of one side with little memory
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


def ways_of(place: Path, names: Sequence[str], settings: dict[str, Any]) -> dict[str, Callable[[str], Any]]:
    """What asks, by name."""
    ways: dict[str, Callable[[str], Any]] = {}
    sandbox.CLOSED.update(settings)  # what every connection of ours begins with
    ds = sl.open(place)
    for name in names:
        connection = duckdb.connect(config=settings)
        if name == "read_parquet":
            connection.execute(f"CREATE VIEW dataset AS FROM read_parquet('{place}/data/*.parquet')")
        if name == "arrow":
            connection.register("dataset", ds.to_arrow())
        ways[name] = ds.sql if name == "ours" else connection.sql
    return ways


def measured(place: Path, rounds: int, names: Sequence[str], **settings: Any) -> tuple[Times, Answers]:
    """Seconds of each question by each way; and what it answered last, None where it failed."""
    ways = ways_of(place, names, settings)
    seconds: dict[str, dict[str, list[float]]] = {name: {way: [] for way in ways} for name in (*SIGNALS, *SCALARS)}
    answers: Answers = {}
    for number in range(rounds + 1):
        for name, query in {**SIGNALS, **SCALARS}.items():
            asked = query.format(reward=0.95 - number / 1000)  # not the very same question again
            for way, ask in ways.items():
                start = time.perf_counter()
                answers[name, way] = answer(ask, asked)
                took = time.perf_counter() - start if answers[name, way] is not None else math.inf
                seconds[name][way] += [took] * (number > 0)
    return {name: {way: statistics.median(all_) for way, all_ in of.items()} for name, of in seconds.items()}, answers


def answer(ask: Callable[[str], Any], query: str) -> list[Any] | None:
    """The rows; None where there was no memory for them."""
    try:
        return list(ask(query).fetchall())
    except (duckdb.Error, SeqlakeError, MemoryError) as error:
        print(f"{query}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        return None


def compare(answers: Answers) -> None:
    """Raise unless both sides gave the same answers, as far as they gave any."""
    for name in (*SIGNALS, *SCALARS):
        one, other = answers.get((name, "ours")), answers.get((name, "read_parquet"))
        assert one is None or other is None or same(one, other), name


class Memory(Thread):
    """Watches the most bytes that this process has of its own, a hundred times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.ended = Event()

    def run(self) -> None:
        while not self.ended.wait(0.01):
            status = Path("/proc/self/status").read_text()
            self.most = max(self.most, int(status.partition("RssAnon:")[2].split()[0]) * 1024)


def limited(place: Path, megabytes: float, rounds: int) -> tuple[Times, dict[str, float]]:
    """As `measured`, each side in a process of its own with so much memory; and the most that each had, in MB."""
    both: Times = {name: {} for name in (*SIGNALS, *SCALARS)}
    answers: Answers = {}
    most: dict[str, float] = {}
    for way in ("ours", "read_parquet"):
        file = place.with_name(f"{way}.pickle")
        command = [sys.executable, __file__, "--rounds", str(rounds), "--limited", str(place), str(megabytes), way]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([*command, str(file)], check=False, timeout=LONGEST)
        times, said, most[way] = pickle.loads(file.read_bytes()) if file.exists() else ({}, {}, math.inf)
        for name, of in both.items():
            of[way] = times.get(name, {}).get(way, math.inf)
        answers |= said
    compare(answers)
    return both, most


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two answers are equal but for the order in which numbers were added."""
    if len(one) != len(other):
        return False
    cells = zip((c for row in one for c in row), (c for row in other for c in row), strict=True)
    return all(math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) else near(a) == near(b) for a, b in cells)


def near(cell: Any) -> Any:
    """Lists of both kinds as lists."""
    return [near(one) for one in cell] if isinstance(cell, (list, tuple)) else cell


def ratio(of: dict[str, float]) -> float | None:
    """read_parquet's time to ours: 0 where ours failed, None where read_parquet alone did."""
    if math.isinf(of["ours"]):
        return 0.0
    return None if math.isinf(of["read_parquet"]) else of["read_parquet"] / of["ours"]


def mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.mean(map(math.log, ratios))) if ratios and min(ratios) > 0 else 0.0


def ratios_of(found: Times, names: Iterable[str]) -> list[float]:
    """Of the questions that have one."""
    return [one for one in (ratio(found[name]) for name in names) if one is not None]


def said(seconds: float) -> str:
    return "fails" if math.isinf(seconds) else f"{seconds * 1e3:.1f}"


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
        limit = "" if size == "small" else f", {report['limit']:.0f} MB of memory allowed"
        lines += ["", f"## {report[f'{size}_megabytes']:.0f} MB of signals{limit}", ""]
        lines += ["| question | ds.sql | read_parquet | ratio | an Arrow table |", "|---|---|---|---|---|"]
        for name, of in found.items():
            arrow = f"{of['arrow'] * 1e3:.1f}" if "arrow" in of else ""
            times = ratio(of)
            cells = [name, said(of["ours"]), said(of["read_parquet"]), "" if times is None else f"{times:.2f}", arrow]
            lines.append(f"| {' | '.join(cells)} |")
    if report.get("most"):
        had = ", ".join(f"{way} {megabytes:.0f}" for way, megabytes in report["most"].items())
        lines += ["", f"The most memory of its own that each had there, in MB: {had}."]
    return "\n".join([*lines, *verdicts(report["checks"])]) + "\n"


def checks(report: dict[str, Any]) -> Checks:
    """What was to be reached."""
    reached = Checks()
    for size in ("small", "large"):
        found = report.get(size)
        if found:
            ratios = ratios_of(found, SIGNALS)
            reached.check(f"{size}: signals, geometric mean", mean(ratios), 3)
            reached.check(f"{size}: signals, the least", min(ratios, default=0), 1)
            reached.check(f"{size}: small columns, geometric mean", mean(ratios_of(found, SCALARS)), 0.95)
    if report.get("most"):
        reached.check("large: the limit to the memory that ours had", report["limit"] / report["most"]["ours"], 1)
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--megabytes", type=float, default=150)
    parser.add_argument("--large", type=float, default=3000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sql.json")
    parser.add_argument("--limited", nargs=4, help=argparse.SUPPRESS)  # place, MB, way, file: little memory
    args = parser.parse_args()
    if args.limited:
        place, megabytes, way, file = args.limited
        memory = Memory()
        memory.start()
        settings = {"memory_limit": f"{megabytes}MB", "temp_directory": f"{place}-spilled"}
        times, answers = measured(Path(place), args.rounds, [way], **settings)
        memory.ended.set()
        Path(file).write_bytes(pickle.dumps((times, answers, memory.most / 1e6)))
        return
    if args.small:
        args.megabytes, args.large, args.rounds = 8, 0, 1
    folder = Path(tempfile.mkdtemp(prefix="seqlake-sql-", dir=args.folder))
    report: dict[str, Any] = {**conditions(), "duckdb": duckdb.__version__, "limit": args.large / 2}
    report |= {"small_megabytes": args.megabytes, "large_megabytes": args.large}
    try:
        write(folder / "small", args.megabytes)
        report["small"], answers = measured(folder / "small", args.rounds, ["ours", "read_parquet", "arrow"])
        compare(answers)
        if args.large:
            write(folder / "large", args.large)
            report["large"], report["most"] = limited(folder / "large", args.large / 2, max(args.rounds // 2, 1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report["checks"] = checks(report)
    save(args.out, report, page(report))


if __name__ == "__main__":
    main()
