"""What the runners of `benchmarks/loader.py` share: a plan in, a line of JSON for each measurement out.

    python benchmarks/peers/<peer>_loader.py PLAN.json

A plan has `arrays` (folder of `action.npy`, `obs_state.npy` and `lengths.npy`), `folder` (where the peer keeps its
files), `workers` (numbers of worker processes to try), perhaps `settings` (the one way to read a bucket that is tried),
and `tasks`: `{"work": "windows", "width": 16, "batch": 256, "seconds": 2}`, `{"work": "sequences", ...}`,
`{"work": "compressed", "memory": 10000000, ...}`, windows of compressed local files with so much memory, and
`{"work": "remote", ...}`, two whole epochs of what lies below `uri` and `web` in a bucket. A peer says how it writes
samples and how it reads them; what it gives is compared with the arrays. A batch maps names to tensors.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

COLUMNS = ("action", "obs_state")
SHARD_BYTES = 14 << 20  # of everybody's shards; a whole one is still one request of ours
Batch: TypeAlias = dict[str, Any]
Epoch: TypeAlias = "Callable[[], Iterable[Batch]]"
TICK = 0.1  # seconds between looks at memory
WARM = 4  # batches: what workers read ahead is not counted as read in no time


class Samples:
    """What is trained on, one sample at a time: windows that do not overlap, or whole sequences where width is 0."""

    def __init__(self, arrays: Path, width: int) -> None:
        self.folder = arrays
        self.arrays = {name: np.load(arrays / f"{name}.npy", mmap_mode="r") for name in COLUMNS}
        self.lengths = np.load(arrays / "lengths.npy")
        self.width = width
        ends = np.cumsum(self.lengths)
        begins = ends - self.lengths
        if not width:
            self.spans = np.stack([begins, ends], 1)
            return
        counts = self.lengths // width
        firsts = np.repeat(begins, counts) + width * (
            np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        )
        self.spans = np.stack([firsts, firsts + width], 1)

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        first, end = self.spans[number].tolist()
        return {name: np.array(values[first:end]) for name, values in self.arrays.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is to be read, and how.

    Attributes:
        arrays: The arrays, which only tell about lengths.
        local: The folder that `write` wrote; None for what lies in a bucket.
        uri, web: The bucket's address as `s3://` and as `http://`.
        cache: An empty folder for local copies.
        width: Steps of a window; 0 for whole sequences.
        batch: Samples of a batch.
        workers: Numbers of worker processes to try.
        memory: Bytes that may be taken for what is compressed; 0 where nothing is.
    """

    arrays: Path
    local: Path | None
    uri: str
    web: str
    cache: Path
    width: int
    batch: int
    workers: Sequence[int]
    memory: int = 0


class Peer(Protocol):
    """A library, as its documentation says to use it."""

    name: str
    sequences: int  # that it writes at most; 0: all

    def write(self, samples: Samples, folder: Path) -> None:
        """Write samples into a new folder."""

    def ways(self, source: Source) -> dict[str, Callable[[], Epoch]]:
        """Ways to read them: each opens, and gives what makes an epoch in another order each time."""


def stack(samples: Sequence[dict[str, Any]]) -> Batch:
    """Windows as a batch; quicker than torch's own collation of arrays."""
    import torch

    return {name: torch.from_numpy(np.stack([np.asarray(one[name]) for one in samples])) for name in COLUMNS}


def pad(samples: Sequence[dict[str, Any]]) -> Batch:
    """Sequences as a batch, as long as the longest."""
    import torch

    cells = {name: [torch.as_tensor(np.asarray(one[name])) for one in samples] for name in COLUMNS}
    padded = {name: torch.nn.utils.rnn.pad_sequence(each, batch_first=True) for name, each in cells.items()}
    return {**padded, "length": torch.tensor([len(one) for one in cells["action"]])}


def by_torch(dataset: Any, source: Source, workers: int, *, loader: Any = None, **options: Any) -> Epoch:
    """The epoch of a `DataLoader` that keeps its workers."""
    import torch

    made = (loader or torch.utils.data.DataLoader)(
        dataset,
        batch_size=source.batch,
        num_workers=workers,
        collate_fn=stack if source.width else pad,
        persistent_workers=workers > 0,
        **options,
    )
    return lambda: made


def main(peer: Peer) -> None:
    """Run a plan."""
    import torch

    torch.set_num_threads(2)
    plan = json.loads(Path(sys.argv[1]).read_text())
    for task in plan["tasks"]:
        width = task.get("width", 0)
        local = Path(plan["folder"]) / (f"windows-{width}" if width else "sequences")
        samples = Samples(Path(plan["arrays"]), width)
        if not local.exists():
            peer.write(samples, local)
        if task["work"] == "write":
            continue
        with tempfile.TemporaryDirectory(dir=plan["folder"]) as cache:
            source = Source(
                arrays=Path(plan["arrays"]),
                local=None if task["work"] == "remote" else local,
                uri=plan.get("uri", ""),
                web=plan.get("web", ""),
                cache=Path(cache),
                width=width,
                batch=task["batch"],
                workers=plan["workers"],
                memory=task.get("memory", 0),
            )
            for settings, open_it in peer.ways(source).items():
                if task["work"] == "remote" and settings != plan.get("settings", settings):
                    continue
                head = {
                    "peer": peer.name,
                    "settings": settings,
                    **{k: task[k] for k in ("work", "width", "batch") if k in task},
                }
                try:
                    if task["work"] == "remote":
                        found = epochs(open_it, samples, plan)
                    else:
                        with Memory() as memory:
                            found = for_a_while(open_it, task["seconds"], samples, peer.sequences)
                        found["peak_mb"] = memory.grown / 1e6
                except Exception as error:
                    found = {"failed": f"{type(error).__name__}: {error}"[-400:]}
                print(json.dumps({**head, **found}), flush=True)
                shutil.rmtree(cache, ignore_errors=True)
                Path(cache).mkdir(exist_ok=True)


def for_a_while(open_it: Callable[[], Epoch], seconds: float, samples: Samples, sequences: int) -> dict[str, Any]:
    """Samples a second and CPU time for a million, when everything is open and warm."""
    batches = forever(open_it())
    first = next(batches)
    check(first, samples)
    mixed = [mixture(batch, samples, sequences) for batch in (first, *islice(batches, WARM))]
    count, cpu, begin = 0, tree_cpu(), time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        count += len(next(batches)["action"])
    cpu = tree_cpu() - cpu
    return {
        "samples_per_second": count / spent,
        "cpu_s_per_million": 1e6 * cpu / count,
        "mixture": sum(mixed) / len(mixed),
    }


def mixture(batch: Batch, samples: Samples, sequences: int) -> float:
    """Distinct sequences of a batch, as a part of what windows drawn from all would give."""
    ends = np.cumsum(samples.lengths)
    found = np.unique(np.searchsorted(ends, batch["action"][:, 0, 0].numpy().astype(np.int64), side="right"))
    count = min(sequences or len(ends), len(ends))
    return float(len(found) / (count * (1 - (1 - 1 / count) ** len(batch["action"]))))


def forever(epoch: Epoch) -> Iterator[Batch]:
    while True:
        yield from epoch()


def epochs(open_it: Callable[[], Epoch], samples: Samples, plan: dict[str, Any]) -> dict[str, Any]:
    """The first epoch, opening included, and the second; what was asked of the server for each."""
    found, epoch, grown = [], None, 0
    for _ in range(2):
        ready_memory(3 * sum(values.nbytes for values in samples.arrays.values()))
        count, firsts, first = 0, [], None
        with Memory() as memory:
            asked, cpu, begin = asked_of(plan["counts"]), tree_cpu(), time.perf_counter()
            if epoch is None:
                epoch = open_it()
            for batch in epoch():
                first = first or time.perf_counter() - begin
                keep = batch["valid"] if "valid" in batch else slice(None)
                firsts.append(batch["action"][keep, 0, 0].numpy().copy())
                count += len(firsts[-1])
            spent, cpu = time.perf_counter() - begin, tree_cpu() - cpu
        grown = max(grown, memory.grown)
        now = asked_of(plan["counts"])
        distinct = np.unique(np.concatenate(firsts))
        assert np.isin(distinct, samples.spans[:, 0]).all(), "Samples came that were not written."
        found.append(
            {
                "seconds": spent,
                "first_batch_s": first,
                "samples": count,
                "missing": len(samples) - len(distinct),
                "cpu_s": cpu,
                **{name: now[name] - asked[name] for name in now},
            }
        )
    cpu_s = 1e6 * found[0]["cpu_s"] / found[0]["samples"]
    return {"epochs": found, "cpu_s_per_million": cpu_s, "peak_mb": grown / 1e6}


def ready_memory(nbytes: int) -> None:
    """Have a process touch memory and give it back.

    What a virtual machine has not used for some seconds it must first get from its host again, at several times the
    cost of writing to it: whoever came first would pay for all.
    """
    subprocess.run([sys.executable, "-c", f"import numpy; numpy.ones({nbytes}, 'u1')"], check=True)


def asked_of(url: str) -> dict[str, int]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return dict(json.load(answer))


def check(batch: Batch, samples: Samples) -> None:
    """A batch is what it should be: the first number of a step is the step's number in the arrays."""
    for number in range(0, len(batch["action"]), 7):
        first = int(batch["action"][number, 0, 0])
        for name, values in samples.arrays.items():
            steps = samples.width or int(batch["length"][number])
            found = batch[name][number].numpy()
            assert found.shape[0] >= steps, (name, found.shape)
            assert np.array_equal(found[:steps], values[first : first + steps]), f"{name} is not what was written."


# ---- this process and its children
def tree(pid: int) -> list[int]:
    """Process ids of one and all its descendants."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are what is wanted
        if name.isdigit():
            try:
                parents.setdefault(int(_stat(name)[1]), []).append(int(name))
            except (OSError, IndexError):
                continue
    found, at = [pid], 0
    while at < len(found):
        found += parents.get(found[at], [])
        at += 1
    return found


def tree_cpu() -> float:
    """Seconds of CPU of all of them, and of their children that have ended."""
    ticks = 0
    for pid in tree(os.getpid()):
        if pid in _watchers:
            continue
        try:
            ticks += sum(map(int, _stat(pid)[11:15]))
        except (OSError, IndexError):
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int | str) -> list[str]:
    """The fields of a process after its name: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def memory_of(pid: int) -> int:
    """Bytes of a process that are no file's pages; what several share, each has a part of."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            own = 1024 * int(line.split()[1])
        elif line.startswith("Pss_Shmem:"):
            return own + 1024 * int(line.split()[1])
    return 0


_watchers: set[int] = set()


class Memory:
    """The most memory that this process and its children have at a time, and what it had before.

    Another process looks: here it would take time from what is measured.
    """

    @property
    def grown(self) -> int:
        """Bytes that came to it, at most."""
        return self.peak - self.before

    def __enter__(self) -> Self:
        command = [sys.executable, __file__, str(os.getpid())]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _watchers.add(self._watcher.pid)
        assert self._watcher.stdout
        self.peak = self.before = int(self._watcher.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        told, _ = self._watcher.communicate(
            "enough\n", timeout=10
        )  # workers were forked with its input, and keep it open
        self.peak = int(told)


def watch(pid: int) -> None:
    """Print how much memory a process and its children have now, and when something is said the most they had."""
    peak = memory_of_all(pid)
    print(peak, flush=True)
    while not select.select([sys.stdin], [], [], TICK)[0]:
        peak = max(peak, memory_of_all(pid))
    print(max(peak, memory_of_all(pid)))


def memory_of_all(pid: int) -> int:
    total = 0
    for one in tree(pid):
        if one != os.getpid():
            with suppress(OSError):
                total += memory_of(one)
    return total


if __name__ == "__main__":
    watch(int(sys.argv[1]))
