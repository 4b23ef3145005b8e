"""A table in each lake beside the same shards standalone, and beside the lake's own client, in one run.

Sequences of 150 to 450 steps, `action` [T, 12] and `obs_state` [T, 48] in float32. The shards are written once,
standalone, and taken over into each lake (`convert(adopt=True)`). Prints a table and writes
`benchmarks/results/lakes.json` and `lakes.md`.

    python benchmarks/lakes.py [--sequences 600] [--rounds 5]

How it is measured. *windows*: batches of 256 random windows of 16 steps from `Loader`, per second. *rows*: both columns
of the whole table through `batches`, sequences per second; the client reads the same columns by its own fastest call.
Rounds alternate between all homes; the median counts. *commit*: one more row, ours and the client's, milliseconds.
*open*: a Delta table whose log names 10 000 files. *lookup*: one sequence by id on an S3-speaking server on loopback
with 30 ms added to each request. DuckLake's own client is DuckDB's extension; where it is not installed nothing stands.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
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
SHARDS = 12


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def windows(dataset: Any) -> Callable[[], float]:
    """Random windows per second, over about half a second."""
    loader = sl.Loader(dataset, window=sl.Window(dict.fromkeys(DIMS, range(16)), edges="drop"), batch_size=BATCH)

    def rate() -> float:
        count, start = 0, time.perf_counter()
        for _ in loader:
            count += BATCH
            if (spent := time.perf_counter() - start) > 0.5:
                break
        return count / spent

    return rate


def rows(dataset: Any) -> Callable[[], float]:
    """Sequences per second, read in order."""
    return lambda: len(dataset) / timed(lambda: [batch.num_rows for batch in dataset.batches(list(DIMS))])


def client(lake: str, dataset: Any) -> Callable[[], float] | None:
    """Sequences per second by the lake's own client."""
    if lake == "delta":
        import deltalake

        table = deltalake.DeltaTable(dataset.table.root)
        return lambda: len(dataset) / timed(lambda: table.to_pyarrow_table(columns=list(DIMS)))
    if lake == "iceberg":
        scan = dataset.table.engine.load().scan(selected_fields=tuple(DIMS))
        return lambda: len(dataset) / timed(scan.to_arrow)
    return None


def commits(lake: str, folder: Path, count: int = 15) -> tuple[float, float | None]:
    """Median milliseconds of one more row: ours, and the client's."""
    ds = sl.create(LAKES[lake].format(folder), {"reward": pa.float64()})
    ours = [timed(lambda n=n: ds.append([{"sequence_id": f"a{n}", "reward": n}])) for n in range(count)]
    more = [pa.table({"sequence_id": [f"b{n}"], "reward": [float(n)]}) for n in range(count)]
    theirs: list[float] = []
    if lake == "delta":
        import deltalake

        theirs = [timed(lambda m=m: deltalake.write_deltalake(ds.table.root, m, mode="append")) for m in more]
    if lake == "iceberg":
        table = ds.table.engine.load()
        kinds = table.schema().as_arrow()
        theirs = [timed(lambda m=m: table.append(m.select(kinds.names).cast(kinds))) for m in more]
    return statistics.median(ours) * 1e3, statistics.median(theirs) * 1e3 if theirs else None


def opening(folder: Path) -> tuple[float, float]:
    """Seconds to open a Delta table of 10 000 files: ours, and deltalake's."""
    import deltalake

    ds = sl.create(f"delta:{folder}/many", {"reward": pa.float64()})
    ds.append([{"sequence_id": "a", "reward": 1}])
    log = Path(ds.table.root, "_delta_log")
    lines = [json.loads(line) for line in (log / f"{1:020d}.json").read_text().splitlines()]
    add = next(line["add"] for line in lines if "add" in line)
    names = ({"add": {**add, "path": f"data/more-{n}.parquet"}} for n in range(9_999))
    head = {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "WRITE"}}
    (log / f"{2:020d}.json").write_text("\n".join(json.dumps(one) for one in (head, *names)))
    ours = statistics.median(timed(lambda: sl.open(ds.location).shards()) for _ in range(5))
    theirs = statistics.median(timed(lambda: deltalake.DeltaTable(ds.table.root).get_add_actions()) for _ in range(5))
    return ours, theirs


def lookup(source: Any) -> dict[str, Any]:
    """Requests and milliseconds of one sequence by id on object storage, after `open`."""
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
        ds = sl.create("delta:s3://lakes/arm", source.schema, storage=storage)
        ds.append(source[:64])
        return _looked(sl.open(ds.location, storage=storage))
    finally:
        server.stdin.close()
        server.wait(timeout=10)


def _looked(ds: Any) -> dict[str, Any]:
    asked: list[str] = []
    real = obstore.get

    def slow(store: Any, path: str, **options: Any) -> Any:
        asked.append(path)
        time.sleep(LATENCY)
        return real(store, path, **options)

    obstore.get = slow
    try:
        found: dict[str, Any] = {"first_ms": timed(lambda: ds.sequence("ep_000007")) * 1e3, "index": len(asked)}
        asked.clear()
        sequence = ds.sequence("ep_000008")
        found["column_ms"] = statistics.median(timed(lambda name=name: sequence[name]) for name in DIMS) * 1e3
        found["columns"] = len(asked) / len(DIMS)
        asked.clear()
        other = ds.sequence("ep_000009")
        found["row_ms"] = timed(lambda: [other[name] for name in ds.schema]) * 1e3
        found["row"] = len(asked)
    finally:
        obstore.get = real
    return found


def measure(folder: Path, *, sequences: int, rounds: int) -> dict[str, Any]:
    """All numbers of one run."""
    plain = write_arm(folder / "plain", make_arrays(sequences), SHARDS)
    homes = {"standalone": plain}
    homes |= {lake: sl.convert(plain, place.format(folder), adopt=True) for lake, place in LAKES.items()}
    for home in homes.values():
        assert home.select("sequence_id").to_arrow().equals(plain.select("sequence_id").to_arrow())
    rates: dict[str, dict[str, Callable[[], float] | None]] = {
        home: {"windows": windows(ds), "rows": rows(ds), "client": client(home, ds)} for home, ds in homes.items()
    }
    seen: dict[str, dict[str, list[float]]] = {home: {} for home in homes}
    for _ in range(rounds + 1):
        for home, calls in rates.items():
            for what, call in calls.items():
                if call is not None:
                    seen[home].setdefault(what, []).append(call())
    found: dict[str, Any] = {
        home: {what: statistics.median(values[1:]) for what, values in each.items()} for home, each in seen.items()
    }
    for lake in LAKES:
        (folder / f"commits-{lake}").mkdir()
        found[lake]["commit_ms"], found[lake]["client_commit_ms"] = commits(lake, folder / f"commits-{lake}")
    found["open_s"], found["client_open_s"] = opening(folder)
    found["lookup"] = lookup(plain)
    return found


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    head = [
        f"# Lakes\n\n{report['when']}, {report['machine']}, load {report['load_before']:.1f}, {report['python']}.",
        "",
    ]
    lines = [
        "| home | windows/s | rows/s | client rows/s | commit ms | client commit ms |",
        "|---|---|---|---|---|---|",
    ]
    names = ("windows", "rows", "client", "commit_ms", "client_commit_ms")
    for home in ("standalone", *LAKES):
        cells = [report[home].get(name) for name in names]
        lines.append(f"| {home} | " + " | ".join("" if c is None else f"{c:,.0f}" for c in cells) + " |")
    seen = report["lookup"]
    opened = f"A Delta table of 10 000 files opens in {report['open_s']:.2f} s"
    index = f"index {seen['index']} requests, {seen['first_ms']:.0f} ms"
    column = f"a column {seen['columns']:g}, {seen['column_ms']:.0f} ms"
    row = f"a row {seen['row']}, {seen['row_ms']:.0f} ms"
    told = [
        "",
        f"{opened} (deltalake {report['client_open_s']:.2f} s).",
        f"On S3 with 30 ms a request: {index}; {column}; {row}.",
    ]
    return "\n".join([*head, *lines, *told, *verdicts(report["checks"])]) + "\n"


def main() -> None:
    """Measure, judge, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sequences", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    report = conditions()
    with tempfile.TemporaryDirectory() as folder:
        report |= measure(Path(folder), sequences=given.sequences, rounds=given.rounds)
    checks, plain = Checks(), report["standalone"]
    for lake in LAKES:
        mine = report[lake]
        checks.check(f"{lake}: windows to standalone", mine["windows"] / plain["windows"], 0.9)
        checks.check(f"{lake}: rows to standalone", mine["rows"] / plain["rows"], 0.9)
        if "client" in mine:
            checks.check(f"{lake}: rows to the client's", mine["rows"] / mine["client"], 5)
    checks.check("lookup: requests for the index", report["lookup"]["index"], 1, at_most=True)
    checks.check("lookup: requests a column", report["lookup"]["columns"], 1, at_most=True)
    checks.check("lookup: requests a row", report["lookup"]["row"], 4, at_most=True)
    report["checks"] = checks
    save(HERE / "results" / "lakes.json", report, page(report))


if __name__ == "__main__":
    main()
