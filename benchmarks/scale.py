"""Two processes beside one thread, Ray beside processes, and models over sequences beside the engines' own ways.

Prints a table and writes `benchmarks/results/scale.json` and `scale.md`.

    python benchmarks/scale.py            some forty minutes, 12 GB of disk and of memory
    python benchmarks/scale.py --small    six minutes
    python benchmarks/scale.py --folder /dev/shm    so that what is written waits for no disk, which all share

How it is measured. The verbs run one after the other in a process that has imported what it needs and done each once
with next to nothing; each reads files that lie in memory, under names that nobody has read (shards are linked there,
all else is copied): a process checks once what it reads by a name. *One thread* is one process held to one core, with
one thread in every library; *two processes* and *Ray* are two workers, each of one thread. Two tasks of nothing were
run before, so that Ray's workers are there, and the server that the processes are forked from, which has imported what
they need (a second, once a process); that they are forked counts. Each way is a process that stays: of every verb the
ways take turns, seconds apart, since a machine is now quicker, now slower, each second round in the other direction; a
ratio is taken within a round, and the median counts. Ray comes after all others, and two processes once more beside
it: a cluster that waits takes 7 % of a core, which one thread would not miss.

*Each core by itself* is the first way done by two such processes at once, each on a core and with names of its own for
the files: twice the work, with nothing to wait for. Twice one thread's time by theirs is what two cores of this machine
give at most.

Signals are float32 [T, 48] of 20 000 steps, for `statistics` twice as many; films are H.264 of 320x240, for `validate`
each four times: both verbs would else end within seconds. Rows with signals are read from the same
Parquet files by both; the model is a small convolution of torch on eight frames of each film, by PyAV where the engine
has no decoder. Two actors of Ray Data ask for half a core each, since two that ask for a whole one leave none of the
cluster's two for its own tasks that read and write, and nothing ever ends. NumPy's matrix product is of the same
vectors in memory that was touched before; the files are mapped by the first question, whose time is given beside it.
"""

from __future__ import annotations

import argparse
import importlib
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
import pyarrow as pa
import torch  # here, so that what processes are forked from has it
from pages import Checks, conditions, save, verdicts

import seqlake as sl
from seqlake.executors import in_order
from seqlake.executors.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

HERE = Path(__file__).parent
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_NUM_THREADS")
STEPS, DIM, FRAMES, WIDTH, HEIGHT, SEEN = 20_000, 48, 48, 320, 240, 8
VERBS = {
    "convert": "signals",
    "validate": "more films",
    "statistics": "more signals",
    "prepare": "films",
    "compute": "films",
}
"""And what they read."""
MORE_SIGNALS, MORE_FILMS = 2, 4
WORKERS_NEED = (
    "seqlake.computing.working", "seqlake.conversion.convert", "seqlake.copies.preparing", "seqlake.dataset.statistics",
    "seqlake.dataset.validation", "seqlake.dataset.writing.sink",
)  # fmt: skip
ONE, TWO, RAY, APART = "one thread", "two processes", "Ray", "each core by itself"
BESIDE = "two processes beside Ray"
SAID = "seqlake says"  # before an answer: Ray prints on standard output, too


# ---- data
def make(folder: Path, *, signals: int, films: int, vectors: int) -> None:
    """Signals, films and vectors, and more signals and films, each a dataset."""
    random = np.random.default_rng(0)
    for name, count in (("signals", signals), ("more signals", signals * MORE_SIGNALS)):
        ds = sl.create(folder / name, sl.Schema({"action": sl.Trajectory(dim=DIM), "task": pa.string()}))
        with ds.writer(bytes_per_shard=16 << 20) as writer:
            for at in range(count):
                action = random.standard_normal((STEPS, DIM), dtype=np.float32)
                writer.add(f"ep_{at:05d}", action=action, task=f"task {at % 7}")
    schema = sl.Schema({"cam": sl.Video(fps=30), "action": sl.Trajectory(dim=7, fps=30)})
    ds = sl.create(folder / "films", schema)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    with ds.writer(rows_per_shard=max(1, films // 8)) as writer:
        for at in range(films):
            moves = np.arange(FRAMES)[:, None, None] * (1 + at % 5)
            grey = (127 + 60 * np.sin((x + moves) / 11 + at) + 60 * np.cos((y - moves) / 7)).astype(np.uint8)
            frames = np.stack([grey, np.roll(grey, 40, 2), np.roll(grey, 90, 1)], -1)
            writer.add(f"ep_{at:05d}", cam=frames, action=random.standard_normal((FRAMES, 7), dtype=np.float32))
    more = sl.create(folder / "more films", schema)
    with more.writer(rows_per_shard=max(1, films * MORE_FILMS // 8)) as writer:
        for again in range(MORE_FILMS):
            for at, one in enumerate(sl.open(folder / "films")):
                film = sl.File(one["cam"].location)
                writer.add(f"ep_{again}_{at:05d}", cam=film, action=np.asarray(one["action"][:]))
    ds = sl.create(folder / "vectors", sl.Schema({"embedding": sl.Embedding(dim=256)}))
    with ds.writer(bytes_per_shard=128 << 20) as writer:
        for first in range(0, vectors, 50_000):
            count = min(50_000, vectors - first)
            numbers = pa.array(random.standard_normal(count * 256, dtype=np.float32))
            names = pa.array([f"v_{at:08d}" for at in range(first, first + count)])
            cells = pa.FixedSizeListArray.from_arrays(numbers, 256).cast(ds.schema["embedding"].arrow)
            writer.add_batch(pa.record_batch({"sequence_id": names, "embedding": cells}))


# ---- the model
class Model:
    """A small convolution; built once in each worker."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 7, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 5, stride=2),
            torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 128),
        )  # fmt: skip

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """[N, height, width, 3] -> [128], their mean."""
        with torch.no_grad():
            pixels = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).float() / 255
            return np.asarray(self.layers(pixels).mean(0))


class Embed:
    """What `compute` runs."""

    def __init__(self) -> None:
        self.model = Model()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"embedding": np.stack([self.model(np.asarray(film[:SEEN])) for film in batch["cam"]])}


class EmbedFiles:
    """What the engines run: the same of films that they know by their files."""

    def __init__(self, root: str) -> None:
        self.root, self.model = root, Model()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = [self.model(decoded(f"{self.root}/{reference}")) for reference in batch["cam"]]
        return {"sequence_id": batch["sequence_id"], "embedding": np.stack(rows)}


def decoded(path: str) -> np.ndarray:
    """The first frames of a film, by PyAV."""
    import av

    with av.open(path) as container:
        container.streams.video[0].thread_count = 1
        frames = (frame.to_ndarray(format="rgb24") for frame in container.decode(video=0))
        return np.stack([next(frames) for _ in range(SEEN)])


# ---- the verbs
def act(verb: str, source: Path, out: Path, on: Any) -> None:
    """One verb on one executor."""
    if verb == "convert":
        sl.convert(source, out / "made", layout="archive", on=on, bytes_per_part=16 << 20, progress=False)
    elif verb == "validate":
        assert not sl.validate(source, depth="decode", on=on).errors
    elif verb == "statistics":
        sl.statistics(sl.open(source), ["action"], on=on, progress=False)
    elif verb == "prepare":
        sl.prepare(sl.open(source), {"cam": (112, 112)}, codec="h264", budget="1TB", out=out / "copies", on=on)
    else:
        ds = sl.open(source)
        done = sl.compute(ds, Embed, {"embedding": sl.Embedding(dim=128)}, read=["cam"], on=on, progress=False)
        assert done.rows == len(ds)


def seconds_of(verb: str, folder: Path, on: Any) -> float:
    """How long a verb takes with files under names that nobody has read: a process checks a page once."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        source = Path(out, "source")
        shutil.copytree(folder / VERBS[verb], source, copy_function=own)
        return timed(lambda: act(verb, source, Path(out), on))


def own(path: str, other: str) -> None:
    """A file under another name: shards, which nobody changes, take no memory twice; locks must not be shared."""
    (os.link if path.endswith(".parquet") else shutil.copy)(path, other)


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def executor(way: str, core: int) -> Any:
    """What runs a verb that way, and waits until it could begin."""
    if way in {ONE, APART}:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
        return Processes(workers=1)
    if way == TWO:
        return Processes(workers=2)
    return started_ray()


def started_ray() -> Any:
    import ray

    from seqlake.executors.ray import Ray

    paths = os.pathsep.join([str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    variables = {**dict.fromkeys(THREADS, "1"), "PYTHONPATH": paths}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})

    @ray.remote
    def ready() -> None:
        for name in ("scale", "pandas", "av", *WORKERS_NEED):
            importlib.import_module(name)
        time.sleep(2)  # so that the other tasks go to another worker

    ray.get([ready.remote() for _ in range(4)])
    return Ray(workers=2)


def acts(way: str, folder: str, core: str = "0") -> None:
    """In a process of its own, whenever a line names a verb: the seconds that it takes."""
    on = executor(way, int(core))
    for verb in VERBS:  # what the first use imports
        seconds_of(verb, Path(folder, "warm"), Processes(workers=1))
    in_order(on, abs, [-1, -2])  # who serves forks is there from now on, as the cluster is
    print(SAID, json.dumps("ready"), flush=True)
    for verb in map(str.strip, sys.stdin):
        print(SAID, json.dumps(seconds_of(verb, Path(folder), on)), flush=True)


class Way:
    """A process, or two at once, that do verbs one way."""

    def __init__(self, way: str, folder: Path) -> None:
        self.processes = [
            subprocess.Popen(
                command("acts", way, folder, core),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
            )
            for core in range(2 if way == APART else 1)
        ]
        self.answers()

    def answers(self) -> list[Any]:
        """What each says next; what else it prints is passed by."""
        said: list[Any] = []
        for process in self.processes:
            assert process.stdout is not None
            lines = (line for line in process.stdout if line.startswith(SAID))
            said.append(json.loads(next(lines).removeprefix(SAID)))
        return said

    def seconds(self, verb: str) -> float:
        """How long a verb takes; the slower one of two."""
        for process in self.processes:
            assert process.stdin is not None
            print(verb, file=process.stdin, flush=True)
        return max(self.answers())

    def end(self) -> None:
        """Let them end."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def turns(names: Sequence[str], folder: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Verb -> way -> the seconds of each round."""
    ways = {way: Way(way, folder) for way in names}
    seconds: dict[str, dict[str, list[float]]] = {verb: {way: [] for way in ways} for verb in VERBS}
    for number in range(rounds):
        for verb in VERBS:
            for way in list(ways)[:: -1 if number % 2 else 1]:
                seconds[verb][way].append(ways[way].seconds(verb))
    for process in ways.values():
        process.end()
    return seconds


def verbs(folder: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Verb -> way -> the seconds of each round; of two processes beside a cluster that waits, too."""
    alone, cluster = turns((ONE, TWO, APART), folder, rounds), turns((TWO, RAY), folder, rounds)
    return {verb: {**ways, RAY: cluster[verb][RAY], BESIDE: cluster[verb][TWO]} for verb, ways in alone.items()}


# ---- beside the engines
def reading(folder: str, rounds: str) -> None:
    """Rows with signals through Ray Data: our source, and Ray's own reader of Parquet."""
    started_ray()
    import ray

    import seqlake.ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    ds = sl.open(Path(folder, "signals"))
    ways = {
        "seqlake.ray.read": lambda: seqlake.ray.read(ds, columns=["sequence_id", "action"]),
        "ray.data.read_parquet": lambda: ray.data.read_parquet(
            str(Path(folder, "signals", "data")), columns=["sequence_id", "action"]
        ),
    }
    for number in range(1 + int(rounds)):  # the first imports what it needs
        for way, made in ways.items():
            began = time.perf_counter()
            rows = sum(len(table) for table in made().iter_batches(batch_format="pyarrow", batch_size=None))
            assert rows == len(ds)
            if number:
                print(json.dumps({"way": way, "seconds": time.perf_counter() - began}), flush=True)


def nearest(folder: str, rounds: str) -> None:
    """Twenty neighbours among all vectors, and NumPy's matrix product alone."""
    ds = sl.open(Path(folder, "vectors"))
    batches = ds.select("embedding").to_arrow().column("embedding").chunks
    matrix = np.concatenate([np.asarray(one.flatten(), np.float32).reshape(-1, 256) for one in batches])
    vector = np.random.default_rng(1).standard_normal(256, dtype=np.float32)
    best = np.argsort(-(matrix @ vector))[:20].tolist()
    first = timed(lambda: sl.nearest(ds, "embedding", vector, k=20, metric="dot"))
    print(json.dumps({"way": "sl.nearest, the first question", "seconds": first}), flush=True)
    assert [one.row for one in sl.nearest(ds, "embedding", vector, k=20, metric="dot")] == best
    many = np.random.default_rng(2).standard_normal((64, 256), dtype=np.float32)
    for number in range(5 * int(rounds)):
        ways = {
            "NumPy's matrix product": lambda: matrix @ vector,
            "sl.nearest, dot": lambda: sl.nearest(ds, "embedding", many[number % 64], k=20, metric="dot"),  # noqa: B023
            "sl.nearest, cosine": lambda: sl.nearest(ds, "embedding", many[number % 64], k=20),  # noqa: B023
        }
        if number < int(rounds):
            ways["NumPy's matrix product, 64 vectors"] = lambda: matrix @ many.T
            ways["sl.nearest, cosine, 64 vectors"] = lambda: sl.nearest(ds, "embedding", many, k=20)
        for way, call in ways.items():
            time.sleep(0.1)  # for some time after a product, the threads of NumPy's library wait for the next on a core
            print(json.dumps({"way": way, "seconds": timed(call)}), flush=True)


def computing(folder: str, rounds: str) -> None:
    """The model over all films: `compute` on Ray, and Ray Data's own way, from Parquet to Parquet."""
    on = started_ray()
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    root = Path(folder, "films")

    def theirs(out: str) -> None:
        films = ray.data.read_parquet(str(root / "data"), columns=["sequence_id", "cam"])
        films.map_batches(
            EmbedFiles,
            fn_constructor_args=[str(root)],
            batch_size=16,
            compute=ray.data.ActorPoolStrategy(size=2),
            num_cpus=0.5,
        ).write_parquet(f"{out}/theirs")

    for _ in range(int(rounds)):
        ours = seconds_of("compute", Path(folder), on)
        print(json.dumps({"way": "sl.compute on Ray", "seconds": ours}), flush=True)
        with tempfile.TemporaryDirectory(dir=folder) as out:
            seconds = timed(lambda: theirs(out))
        print(json.dumps({"way": "ray.data map_batches", "seconds": seconds}), flush=True)


def computing_by_daft(folder: str, rounds: str) -> None:
    """The model over all films by Daft, from Parquet to Parquet."""
    import daft

    root = str(Path(folder, "films"))
    embed = EmbedFiles(root)

    @daft.func.batch(return_dtype=daft.DataType.fixed_size_list(daft.DataType.float32(), 128))
    def embedded(cam: daft.Series) -> Any:
        rows = embed({"cam": cam.to_pylist(), "sequence_id": None})["embedding"]
        return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1), pa.float32()), 128)

    for _ in range(int(rounds)):
        with tempfile.TemporaryDirectory(dir=folder) as out:
            films = daft.read_parquet(f"{root}/data/*.parquet").select("sequence_id", "cam")
            made = films.select("sequence_id", embedded(films["cam"]).alias("embedding"))
            print(json.dumps({"way": "Daft", "seconds": timed(lambda: made.write_parquet(out))}), flush=True)  # noqa: B023


PARTS = {
    "acts": acts, "reading": reading, "nearest": nearest, "computing": computing, "daft": computing_by_daft,
}  # fmt: skip


def python_of(part: str) -> str:
    """What runs a part: Daft has an environment of its own where `peers/setup` made one."""
    daft = Path(os.environ.get("SEQLAKE_DAFT_PYTHON") or HERE / ".venv-daft" / "bin" / "python")
    return str(daft) if part == "daft" and daft.exists() else sys.executable


def command(part: str, *arguments: object) -> list[str]:
    return [python_of(part), __file__, "--part", part, *map(str, arguments)]


def environment(*, threads: bool = False) -> dict[str, str]:
    """Of a part, in which libraries have one thread unless it asks for more."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **compiled,  # as an installation has modules
        "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]),
        **({} if threads else dict.fromkeys(THREADS, "1")),
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    }


def child(part: str, *arguments: object, threads: bool = False) -> list[dict[str, Any]]:
    """The lines of a part, or none where it cannot be measured here."""
    asked = command(part, *arguments)
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, check=False, timeout=600, env=environment(threads=threads)
        )
    except subprocess.TimeoutExpired:
        print(f"{part} {arguments}: not done after ten minutes", flush=True)
        return []
    if done.returncode:
        print(f"{part} {arguments}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def median(lines: Iterable[dict[str, Any]], way: str) -> float | None:
    """The median of some times."""
    seconds = [one["seconds"] for one in lines if one["way"] == way]
    return statistics.median(seconds) if seconds else None


def ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def by_round(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the ratios of rounds."""
    return statistics.median(one / other for one, other in zip(over, under, strict=True))


def measured(folder: Path, *, rounds: int) -> dict[str, Any]:
    report: dict[str, Any] = {"verbs": {}, "ways": {}, "missing": []}
    for verb, ways_of in verbs(folder, rounds).items():
        report["verbs"][verb] = ways_of
        print(verb, ways_of, flush=True)
    for part in ("reading", "nearest", "computing", "daft"):
        lines_of = child(part, folder, rounds, threads=part == "nearest")
        ways = {one["way"]: median(lines_of, one["way"]) for one in lines_of}
        report["ways"][part] = ways
        print(part, ways, flush=True)
    if not report["ways"]["daft"]:
        report["missing"].append("Daft is not there: `PEERS=daft benchmarks/peers/setup` makes its environment")
    return report


def conclusions(report: dict[str, Any]) -> Checks:
    checks = Checks()
    for verb, ways in report["verbs"].items():
        checks.check(f"{verb}: two processes, times one thread", by_round(ways[ONE], ways[TWO]), 1.8)
    for verb, ways in report["verbs"].items():
        checks.check(f"{verb}: Ray's time of processes'", by_round(ways[RAY], ways[BESIDE]), 1.1, at_most=True)
    ways = {way: seconds for part in report["ways"].values() for way, seconds in part.items()}
    faster = ratio(ways.get("ray.data.read_parquet"), ways.get("seqlake.ray.read"))
    checks.check("seqlake.ray.read, times ray.data.read_parquet", faster, 3)
    product = ways.get("NumPy's matrix product")
    checks.check("sl.nearest (dot), of NumPy's matrix product", ratio(product, ways.get("sl.nearest, dot")), 0.5)
    checks.check("sl.nearest (cosine), of NumPy's matrix product", ratio(product, ways.get("sl.nearest, cosine")), 0.5)
    return checks


def page(report: dict[str, Any]) -> str:
    sizes = report["sizes"]
    lines = [
        "# Many workers",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}, Ray {report['ray']}.",
        f"Load {report['load_before']:.1f} before. {sizes['signals']} sequences of signals ({MORE_SIGNALS} times as",
        f"many for `statistics`), {sizes['films']} films ({MORE_FILMS} times as many for `validate`),",
        f"{sizes['vectors']:,} vectors of 256; files in {report['folder']}; medians of {report['rounds']} rounds,",
        "in seconds.",
        "`benchmarks/scale.py` writes this page and says how it measures.",
        "",
        f"| verb | {ONE} | {TWO} | {APART}, twice the work | the most two cores give | {BESIDE} | {RAY}, started |",
        "|---|---|---|---|---|---|---|",
    ]
    for verb, ways in report["verbs"].items():
        most = 2 * by_round(ways[ONE], ways[APART])
        one, two, apart, beside, ray = (statistics.median(ways[way]) for way in (ONE, TWO, APART, BESIDE, RAY))
        seconds = [one, two, apart, most, beside, ray]
        lines.append(f"| {verb} | {' | '.join(f'{one:.2f}' for one in seconds)} |")
    lines += ["", "| | seconds |", "|---|---|"]
    for part in report["ways"].values():
        lines += [f"| {way} | {seconds:.3f} |" for way, seconds in part.items()]
    lines += [f"\n{why}." for why in report["missing"]]
    return "\n".join([*lines, *verdicts(report["checks"])]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="little data, one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--signals", type=int, default=512)
    parser.add_argument("--films", type=int, default=256)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scale.json")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        PARTS[args.part[0]](*args.part[1:])
        return
    import ray

    sizes = {"signals": 24, "films": 128, "vectors": 50_000}
    if not args.small:
        sizes = {"signals": args.signals, "films": args.films, "vectors": args.vectors}
    folder = Path(tempfile.mkdtemp(prefix="seqlake-scale-", dir=args.folder))
    try:
        make(folder, **sizes)
        make(folder / "warm", signals=1, films=1, vectors=1)
        rounds = 1 if args.small else args.rounds
        report = {**conditions(), "ray": ray.__version__, "sizes": sizes, "rounds": rounds}
        report["folder"] = str(folder.parent)
        report |= measured(folder, rounds=rounds)
        report["checks"] = conclusions(report)
    finally:
        shutil.rmtree(folder)
    save(args.out, report, page(report))


if __name__ == "__main__":
    main()
