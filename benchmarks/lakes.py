"""A table in each lake beside the same shards standalone, and beside the lake's own client, in one run.

Sequences of 150 to 450 steps, `action` [T, 12] and `obs_state` [T, 48] in float32. The shards are written once,
standalone, and taken over into each lake (`convert(adopt=True)`). Prints a table and writes
`benchmarks/results/lakes.json` and `lakes.md`.

    python benchmarks/lakes.py [--sequences 7200] [--rounds 7]

How it is measured. Every ratio is the median of ratios of neighbours in time, whose order alternates. *windows*:
batches of 256 random windows of 16 steps from `Loader`, per second; the client reads the sequences of one such batch
by their ids (DuckDB: cuts the windows out itself) and the windows are cut out of them. *rows*: both columns of the
whole table through `batches`, sequences per second, every value copied into memory; the client reads the same columns
as a table and batch by batch, the faster counts; once more by processor time, which other work on the machine changes
less. *commit*: one more row, ours and the client's, milliseconds. *open*: a table whose metadata name 10 000 files.
*lookup*: one sequence by id on an S3-speaking server on loopback with 30 ms added to each request, of a table that
five commits made. DuckLake's own client is DuckDB's extension; where it is not installed nothing stands.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import obstore
import pyarrow as pa
from lake_clients import WIDTH, client, timed
from pages import Checks, conditions, save, verdicts
from signals import BATCH, DIMS, make_arrays, write_arm

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
LAKES = {
    "delta": "delta:{}/delta",
    "iceberg": "iceberg:{}/iceberg/robots.arm",
    "ducklake": "ducklake:sqlite:{}/lake.sqlite?table=arm",
}
LATENCY = 0.03
SHARDS = 4  # of about 130 MB each, the size that a writer makes by default
_PATH = 1  # of a file in its record in a manifest


def windows(dataset: Any) -> Callable[[], float]:
    """Random windows per second, over about half a second."""
    loader = sl.Loader(dataset, window=sl.Window(dict.fromkeys(DIMS, range(WIDTH)), edges="drop"), batch_size=BATCH)

    def rate() -> float:
        count, start = 0, time.perf_counter()
        for _ in loader:
            count += BATCH
            if (spent := time.perf_counter() - start) > 0.5:
                break
        return count / spent

    return rate


def rows(dataset: Any) -> tuple[float, float]:
    """Seconds on the clock and of the processor, of all rows in order."""
    return timed(lambda: [batch.num_rows for batch in dataset.batches(list(DIMS))])


def pairs(first: Callable[[], Any], second: Callable[[], Any], rounds: int) -> list[tuple[Any, Any]]:
    """What both give, `rounds` times, in alternating order; the first time is not counted."""
    found = []
    for turn in range(rounds + 1):
        if turn % 2:
            late = second()
            found.append((first(), late))
        else:
            found.append((first(), second()))
    return found[1:]


def medians(values: list[Any]) -> float:
    """The median."""
    return float(statistics.median(values))


def reading(homes: dict[str, Any], lengths: np.ndarray, rounds: int) -> dict[str, Any]:
    """Windows and rows of each lake beside standalone, and beside its client."""
    plain, found = homes["standalone"], {}
    windows_of = {home: windows(ds) for home, ds in homes.items()}
    count = len(plain)
    random = np.random.default_rng(1)
    for lake in LAKES:
        ds = homes[lake]
        ratio = pairs(windows_of["standalone"], windows_of[lake], rounds)
        both = pairs(lambda: rows(plain), lambda ds=ds: rows(ds), rounds)
        mine: dict[str, Any] = {
            "windows": medians([b for _, b in ratio]),
            "windows_to_standalone": medians([b / a for a, b in ratio]),
            "rows": medians([count / b[0] for _, b in both]),
            "rows_to_standalone": medians([a[0] / b[0] for a, b in both]),
            "rows_cpu_to_standalone": medians([a[1] / b[1] for a, b in both]),
        }
        found.setdefault("standalone", {"windows": medians([a for a, _ in ratio])})
        found["standalone"].setdefault("rows", medians([count / a[0] for a, _ in both]))
        theirs = client(lake, ds)
        if theirs is not None:
            peer = pairs(lambda ds=ds: rows(ds), theirs.rows, rounds)
            picks = [int(one) for one in random.integers(0, count, BATCH)]
            named = [(f"ep_{one:06d}", int(random.integers(0, lengths[one] - WIDTH))) for one in picks]
            cut = [theirs.windows(named)[0] for _ in range(3)]
            mine |= {
                "client_rows": medians([count / min(wall for wall, _ in them) for _, them in peer]),
                "rows_to_client": medians([min(wall for wall, _ in them) / us[0] for us, them in peer]),
                "rows_cpu_to_client": medians([min(cpu for _, cpu in them) / us[1] for us, them in peer]),
                "client_windows": BATCH / medians(cut),
            }
            mine["windows_to_client"] = mine["windows"] / mine["client_windows"]
            theirs.close()
        found[lake] = mine
    return found


def commits(lake: str, folder: Path, count: int = 15) -> dict[str, float]:
    """Median milliseconds of one more row: ours, and the client's, each in a table of its own."""
    both = []
    for who in ("ours", "theirs"):
        (folder / who).mkdir()
        both.append(sl.create(LAKES[lake].format(folder / who), {"reward": pa.float64()}))
    ds, other = both
    ours = lambda n: timed(lambda: ds.append([{"sequence_id": f"a{n}", "reward": n}]))  # noqa: E731
    ours(-1)
    theirs = client(lake, other)
    if theirs is not None:
        theirs.commit(-1)
    seen: dict[str, list[tuple[float, float]]] = {"": [], "client_": []}
    for n in range(count):
        seen[""].append(ours(n))
        if theirs is not None:
            seen["client_"].append(theirs.commit(n))
    if theirs is not None:
        theirs.close()
    found = {}
    for who, times in seen.items():
        if times:
            found |= {f"{who}commit_ms": medians([t[0] for t in times]) * 1e3}
            found |= {f"{who}commit_cpu_ms": medians([t[1] for t in times]) * 1e3}
    return found


def opening(folder: Path) -> dict[str, float]:
    """Seconds to open tables of 10 000 files and list their shards: ours, and the Python clients'."""
    import deltalake

    ds = sl.create(f"delta:{folder}/many", {"reward": pa.float64()})
    ds.append([{"sequence_id": "a", "reward": 1}])
    log = Path(ds.table.root, "_delta_log")
    lines = [json.loads(line) for line in (log / f"{1:020d}.json").read_text().splitlines()]
    add = next(line["add"] for line in lines if "add" in line)
    named = ({"add": {**add, "path": f"data/more-{n}.parquet"}} for n in range(9_999))
    head = {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "WRITE"}}
    (log / f"{2:020d}.json").write_text("\n".join(json.dumps(one) for one in (head, *named)))
    return {
        "delta": _opened(ds.location),
        "delta_client": _opening(lambda: deltalake.DeltaTable(ds.table.root).get_add_actions()),
        **_opening_iceberg(folder),
    }


def _opening_iceberg(folder: Path) -> dict[str, float]:
    ds = sl.create(f"iceberg:{folder}/warehouse/robots.many", {"reward": pa.float64()})
    ds.append([{"sequence_id": "a", "reward": 1}])
    address = ds.table.engine.address
    table = address.open_catalog().load_table(address.identifier)
    (first,) = [task.file for task in table.scan().plan_files()]
    with table.transaction() as change, change.update_snapshot().fast_append() as update:
        for n in range(9_999):
            one = copy.copy(first)
            one._data = list(first._data)  # noqa: SLF001 - copies share it
            one._data[_PATH] = f"{table.location()}/data/more-{n}.parquet"  # noqa: SLF001 - it has no setter
            update.append_data_file(one)

    def theirs() -> Any:
        return list(address.open_catalog().load_table(address.identifier).scan().plan_files())

    assert len(theirs()) == 10_000
    return {"iceberg": _opened(ds.location), "iceberg_client": _opening(theirs)}


def _opened(location: str) -> float:
    assert len(sl.open(location).shards()) == 10_000
    return _opening(lambda: sl.open(location).shards())


def _opening(call: Callable[[], Any]) -> float:
    return medians([timed(call)[0] for _ in range(5)])


def lookup(source: Any, folder: Path) -> dict[str, dict[str, Any]]:
    """Requests and milliseconds of one sequence by id on object storage, after `open`, in each lake."""
    server = subprocess.Popen(
        [sys.executable, HERE.parent / "tests" / "conftest.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        endpoint = server.stdout.readline().strip()
        keys = {"access_key_id": "testing", "secret_access_key": "testing", "region": "us-east-1"}
        storage = {**keys, "endpoint": endpoint, "allow_http": "true", "virtual_hosted_style_request": "false"}
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/lakes", method="PUT"), timeout=10).close()
        warehouse = {"uri": f"sqlite:///{folder}/lookup.db", "warehouse": "s3://lakes/iceberg"}
        places = {
            "delta": ("delta:s3://lakes/arm", storage),
            "iceberg": ("iceberg://lab/robots.arm", {**storage, **warehouse}),
            "ducklake": (f"ducklake:sqlite:{folder}/lookup.sqlite?table=arm&data_path=s3://lakes/duck", storage),
        }
        found = {}
        for lake, (place, options) in places.items():
            ds = sl.create(place, source.schema, storage=options)
            for first in range(0, 40, 8):
                ds.append(source[first : first + 8])
            found[lake] = _looked(sl.open(ds.location, storage=options))
        return found
    finally:
        server.stdin.close()
        server.wait(timeout=10)


def _looked(ds: Any) -> dict[str, Any]:
    asked: list[str] = []
    real = {name: getattr(obstore, name) for name in ("get", "head", "list")}

    def slow(name: str) -> Callable[..., Any]:
        def call(store: Any, *given: Any, **options: Any) -> Any:
            asked.append(str(given[0]) if given else "")
            time.sleep(LATENCY)
            return real[name](store, *given, **options)

        return call

    for name in real:
        setattr(obstore, name, slow(name))
    try:
        found: dict[str, Any] = {"first_ms": timed(lambda: ds.sequence("ep_000007"))[0] * 1e3, "index": len(asked)}
        asked.clear()
        sequence = ds.sequence("ep_000018")
        found["column_ms"] = medians([timed(lambda name=name: sequence[name])[0] for name in DIMS]) * 1e3
        found["columns"] = len(asked) / len(DIMS)
        asked.clear()
        other = ds.sequence("ep_000029")
        found["row_ms"] = timed(lambda: [other[name] for name in ds.schema])[0] * 1e3
        found["row"] = len(asked)
    finally:
        for name, call in real.items():
            setattr(obstore, name, call)
    return found


def measure(folder: Path, *, sequences: int, rounds: int) -> dict[str, Any]:
    """All numbers of one run."""
    arrays = make_arrays(sequences)
    plain = write_arm(folder / "plain", arrays, SHARDS)
    homes = {"standalone": plain}
    homes |= {lake: sl.convert(plain, place.format(folder), adopt=True) for lake, place in LAKES.items()}
    for home in homes.values():
        assert home.select("sequence_id").to_arrow().equals(plain.select("sequence_id").to_arrow())
    found = reading(homes, arrays["lengths"], rounds)
    for lake in LAKES:
        (folder / f"commits-{lake}").mkdir()
        found[lake] |= commits(lake, folder / f"commits-{lake}")
    (folder / "lookup").mkdir()
    return {**found, "open_s": opening(folder), "lookup": lookup(plain, folder / "lookup")}


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    columns = {
        "windows": "windows/s",
        "client_windows": "client windows/s",
        "rows": "rows/s",
        "client_rows": "client rows/s",
        "commit_ms": "commit ms",
        "client_commit_ms": "client commit ms",
    }
    lines = [
        f"# Lakes\n\n{report['when']}, {report['machine']}, load {report['load_before']:.1f}, {report['python']}.\n",
        f"| home | {' | '.join(columns.values())} |",
        "|---" * (1 + len(columns)) + "|",
    ]
    for home in ("standalone", *LAKES):
        cells = [report[home].get(name) for name in columns]
        lines.append(f"| {home} | " + " | ".join("" if c is None else f"{c:,.0f}" for c in cells) + " |")
    told = ", ".join(f"{name.replace('_', ', ')} {value:.2f} s" for name, value in report["open_s"].items())
    lines += ["", f"A table of 10 000 files opens: {told}.", "", "On S3 with 30 ms a request:", ""]
    for lake, seen in report["lookup"].items():
        index = f"index {seen['index']} requests, {seen['first_ms']:.0f} ms"
        column = f"a column {seen['columns']:g}, {seen['column_ms']:.0f} ms"
        lines.append(f"- {lake}: {index}; {column}; a row {seen['row']}, {seen['row_ms']:.0f} ms")
    return "\n".join([*lines, *verdicts(report["checks"])]) + "\n"


def judged(report: dict[str, Any]) -> Checks:
    """What was to be reached, and what was."""
    checks = Checks()
    for lake in LAKES:
        mine, seen = report[lake], report["lookup"][lake]
        checks.check(f"{lake}: windows to standalone", mine["windows_to_standalone"], 0.9)
        checks.check(f"{lake}: rows to standalone", mine["rows_to_standalone"], 0.9)
        checks.check(f"{lake}: windows to the client's", mine.get("windows_to_client"), 5)
        checks.check(f"{lake}: rows to the client's", mine.get("rows_to_client"), 5)
        checks.check(f"{lake}: rows to the client's, processor time", mine.get("rows_cpu_to_client"), 5)
        checks.check(f"{lake}: requests for the index", seen["index"], 1, at_most=True)
        checks.check(f"{lake}: requests a column", seen["columns"], 1, at_most=True)
        checks.check(f"{lake}: requests a row", seen["row"], 4, at_most=True)
    return checks


def main() -> None:
    """Measure, judge, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sequences", type=int, default=7200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "lakes.json")
    given = parser.parse_args()
    report = conditions()
    with tempfile.TemporaryDirectory() as folder:
        report |= measure(Path(folder), sequences=given.sequences, rounds=given.rounds)
    report["checks"] = judged(report)
    save(given.out, report, page(report))


if __name__ == "__main__":
    main()
