"""Every verb over a small dataset; and shares of them as processes of their own, which may be killed.

A server that has all imported forks a process for each request, so that a share costs no start of Python.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import seqlake as sl
from seqlake import shares
from seqlake.executors.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
HERE = Processes(workers=1)
SHARES = 3
SMALL = {  # several tasks of few rows
    "seqlake.dataset.writing.parts.LEAST": 1500,
    "seqlake.dataset.writing.parts._ROWS_OF_FILES": 2,
    "seqlake.computing.ROWS_PER_TASK": 2,
    "seqlake.computing.ROWS_WITH_FILES": 2,
    "seqlake.dataset.validation.checking._ROWS_OF_TASK": 2,
    "seqlake.dataset.similarity.pairs.ROWS": 5,
    "seqlake.tables.standalone.adopting._FILES_PER_TASK": 1,
}


def totals() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that is sent to other machines with its code."""

    def summed(batch: dict[str, Any]) -> dict[str, Any]:
        actions = batch["action"]
        return {
            "sum": [float(one.sum()) for one in actions],
            "picture": [np.full((4, 4, 3), len(one), np.uint8) for one in actions],
        }

    return summed


COLUMNS = {"sum": pa.float64(), "picture": sl.Image(format="png")}


def three(ds: Any) -> int:
    """Bytes that three shards fill."""
    return int(2.2 * max(shard.nbytes for shard in ds.shards()))


VERBS: dict[str, Callable[[Any, Path, Any], Any]] = {
    "convert": lambda ds, out, on: sl.convert(ds, out, bytes_per_part=2000, on=on or HERE),
    "convert to others": lambda ds, out, on: sl.convert(
        ds.select("sequence_id", "action"), out, to="mcap", bytes_per_part=500, on=on or HERE
    ),
    "repack": lambda ds, out, on: sl.repack(ds, out, on=on),
    "repack by rows": lambda ds, out, on: sl.repack(ds, out, rows_per_shard=5, on=on),
    "trim": lambda ds, out, on: sl.trim(ds, out, start=2, stop=8, on=on),
    "segment": lambda ds, out, on: sl.segment(ds, out, by="label", on=on),
    "resample": lambda ds, out, on: sl.resample(ds.select("sequence_id", "action", "label"), out, fps=25, on=on),
    "compact": lambda ds, out, on: sl.compact(ds, bytes_per_shard=three(ds), on=on),
    "index": lambda ds, out, on: sl.index(ds, on=on),
    "prepare": lambda ds, out, on: sl.prepare(ds, {"cam": (8, 8)}, codec="mjpeg", on=on or HERE),
    "validate": lambda ds, out, on: sl.validate(ds, depth="decode", on=on),
    "statistics": lambda ds, out, on: sl.statistics(ds, on=on),
    "outliers": lambda ds, out, on: sl.outliers(ds, sl.statistics(ds), on=on),
    "duplicates": lambda ds, out, on: sl.duplicates(ds, "vector", threshold=-1, on=on or HERE),
    "compute": lambda ds, out, on: sl.compute(ds, totals(), COLUMNS, read=["action"], on=on or HERE),
}
WRITERS = {"convert", "repack", "repack by rows", "trim", "segment", "resample"}
PASSES = {"statistics": 2}  # of others one


def record(place: Path) -> None:
    """Four shards of three rows: signals, labels, vectors and films; beside it the Parquet of another writer."""
    schema = {
        "cam": sl.Video(fps=10),
        "action": sl.Trajectory(dim=3, fps=10),
        "label": sl.Trajectory(dim=1, fps=10, dtype="int64"),
        "vector": sl.Embedding(dim=4),
    }
    ds = sl.create(place / "ours", sl.Schema(schema))
    rng = np.random.default_rng(0)
    for shard in range(4):
        with ds.writer() as writer:
            for row in range(3):
                steps = 8 + row
                writer.add(
                    f"ep_{shard}_{row}",
                    cam=rng.integers(0, 255, (steps, 16, 16, 3), dtype=np.uint8),
                    action=rng.normal(size=(steps, 3)).astype(np.float32),
                    label=np.arange(steps)[:, None] // 4,
                    vector=rng.normal(size=4).astype(np.float32),
                )
    theirs = place / "theirs"
    (theirs / "data").mkdir(parents=True)
    for number in range(5):
        cells = [rng.normal(size=(3 + row, 2)).astype(np.float32).tolist() for row in range(4)]
        columns = {
            "sequence_id": [f"{number}-{row}" for row in range(4)],
            "pose": pa.array(cells, pa.list_(pa.list_(pa.float32()))),
        }
        path = theirs / "data" / f"{number}.parquet"
        pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False, write_page_index=True)
    sl.init(theirs)


def copied(recorded: Path, verb: str, place: Path) -> Path:
    """A copy of what a verb is for, of which nothing is known yet; times stay, which tell files apart."""
    return shutil.copytree(recorded / ("theirs" if verb == "index" else "ours"), place)


def frames(column: str, rows: Any) -> list[bytes]:
    """The pixels of every row."""
    return [row[column].decode(range(len(row[column]))).tobytes() for row in rows]


def outcome(verb: str, place: Path, out: Path, on: Any) -> Any:
    """Run a verb; what it leaves and gives, by value: rows, frames, findings, numbers, files."""
    ds = sl.open(place)
    given = VERBS[verb](ds, out, on)
    if verb in {"outliers", "duplicates"}:
        return given
    if verb == "statistics":
        return given.to_json()
    if verb == "validate":
        return [one.to_json() | {"location": ""} for one in given]
    if verb == "prepare":
        copies = sorted(place.glob("_seqlake/copies/*/*.mjpeg"))
        assert len(copies) == 12
        return given.columns[0].written, given.columns[0].frames, [path.read_bytes() for path in copies]
    if verb == "convert to others":
        return sl.scan(out).to_arrow().sort_by("sequence_id").to_pydict()
    new = sl.open(out if verb in WRITERS else place)
    assert not new.validate(depth="decode").errors
    rows = new.select(*(name for name in new.schema if new.schema[name].medium is None)).to_arrow()
    pixels = {name: frames(name, new) for name in new.schema if new.schema[name].medium is not None}
    flat = [shard.open().flat(name) is not None for shard in new.shards() for name in ("action", "pose") if name in new]
    history = [(version.operation, version.rows) for version in new.versions()]
    more = (given.left_out, given.files) if verb in {"trim", "segment"} else ()
    return rows.to_pydict(), pixels, all(flat), history, more, [shard.rows for shard in new.shards()]


def die_after(receipts: int) -> None:
    """Let this process be killed when one more task has ended, whose receipt is never written."""
    keep = shares._keep
    left = receipts

    def keep_some(*arguments: Any) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        keep(*arguments)

    shares._keep = keep_some


def die_at_the_end() -> None:
    """Let this process be killed when its commit is made, and nothing says so."""
    shares.RecordedRun.close = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]


def die_within(seconds: float) -> None:
    """Let this process be killed at about that time, wherever it is."""

    def wait() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def act(request: dict[str, Any]) -> str:
    """One share, or the end of a run; what it has to say."""
    if (receipts := request.get("die_after")) is not None:
        die_after(receipts)
    if (seconds := request.get("die_within")) is not None:
        die_within(seconds)
    if request.get("die_at_the_end"):
        die_at_the_end()
    folder, number = request["work"], request["share"]
    on = (
        shares.Finish(folder=folder)
        if number is None
        else shares.Share(folder=folder, number=number, of=SHARES, on=HERE)
    )
    try:
        VERBS[request["verb"]](sl.open(request["place"]), Path(request["out"]), on)
    except shares.Ended as ended:
        return f"Ended: {ended}"
    except sl.errors.SeqlakeError as error:
        return f"{type(error).__name__}: {error} {error.hint}"
    return "Done"


def serve() -> None:
    """Fork a process for each line of stdin, and say what became of it."""
    for name, value in SMALL.items():
        module, _, attribute = name.rpartition(".")
        setattr(import_module(module), attribute, value)
    for module in ("tqdm", "av", "duckdb", "mcap.writer", "seqlake.conversion.convert", "seqlake.dataset.reshaping"):
        import_module(module)
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, act(json.loads(line)).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            text = answer.read().decode()
        _, status = os.waitpid(child, 0)
        print(json.dumps(text or ("Killed" if os.WTERMSIG(status) == signal.SIGKILL else f"{status}")), flush=True)


class Others:
    """Processes that run shares."""

    def __init__(self) -> None:
        code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from tests.executors import sharing; sharing.serve()"
        self._server = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def share(self, verb: str, place: Path, out: Path, work: Path, number: int | None, **fate: Any) -> str:
        """What the process that ran it said, or that it was killed."""
        request = {"verb": verb, "place": str(place), "out": str(out), "work": str(work), "share": number, **fate}
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return str(json.loads(self._server.stdout.readline()))

    def close(self) -> None:
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait(60)
        assert self._server.stdout
        self._server.stdout.close()


def others() -> Iterator[Others]:
    """A fixture: processes for the shares of a module of tests."""
    server = Others()
    yield server
    server.close()
