"""MosaicML Streaming on the folders of benchmarks/mds.py: prints one line of JSON for each figure.

python mosaicml_samples.py read FOLDER        LocalDataset and StreamingDataset, samples a second
python mosaicml_samples.py write FOLDER       its writer, samples a second
python mosaicml_samples.py remote URI FOLDER  a first epoch from object storage
python mosaicml_samples.py start FOLDER       seconds to import, and from there to the first batch
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

BEGAN = time.perf_counter()
from official import streaming  # noqa: E402 - importing is timed

IMPORTED = time.perf_counter() - BEGAN

import numpy as np  # noqa: E402 - see above
from torch.utils.data import DataLoader  # noqa: E402 - see above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 256


def say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def rate(samples: Iterator[int], seconds: float) -> float:
    """Samples a second of something that yields how many it made; the first is not counted."""
    next(samples)
    count, start = 0, time.perf_counter()
    for made in samples:
        count += made
        if time.perf_counter() - start > seconds:
            break
    return count / (time.perf_counter() - start)


def ones(dataset: Any, order: np.ndarray) -> Iterator[int]:
    while True:
        for number in order.tolist():
            _ = dataset[number]
            yield 1


def collated(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """What a training loop needs of a batch: arrays and numbers stacked, the rest as lists."""
    batch: dict[str, Any] = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        batch[name] = np.stack(values) if isinstance(first, (np.ndarray, np.generic, int)) else values
    return batch


def batches(make: Callable[[], Any]) -> Iterator[int]:
    while True:
        loader = make()
        for batch in loader:
            yield len(next(iter(batch.values())))


def decoded(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value) if hasattr(value, "convert") else value for name, value in sample.items()}


class Decoded:
    """A map-style dataset whose images are arrays."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return decoded(self.dataset[number])


class DecodedStream(streaming.StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        return decoded(super().__getitem__(at))


def read(folder: Path, seconds: float, workers: list[int]) -> None:
    local = streaming.LocalDataset(str(folder))
    images = any(hasattr(value, "convert") for value in local[0].values())
    given = Decoded(local) if images else local
    random = np.random.default_rng(0)
    say(what="LocalDataset, sample by sample, in order", rate=rate(ones(given, np.arange(len(local))), seconds))
    say(what="LocalDataset, sample by sample, random", rate=rate(ones(given, random.permutation(len(local))), seconds))
    for count in workers:

        def mapped(count: int = count) -> Any:
            return DataLoader(given, batch_size=BATCH, shuffle=True, num_workers=count, collate_fn=collated)

        say(what="LocalDataset, batches", workers=count, rate=rate(batches(mapped), seconds))
    kind = DecodedStream if images else streaming.StreamingDataset
    stream = kind(local=str(folder), batch_size=BATCH, shuffle=True)
    order = random.permutation(len(local))
    say(what="StreamingDataset, sample by sample, random", rate=rate(ones(stream, order), seconds))

    def alone() -> Iterator[int]:
        while True:
            for _ in stream:
                yield 1

    say(what="StreamingDataset, sample by sample, epoch", rate=rate(alone(), seconds))
    for count in workers:
        # A data set for each: one whose iteration was left in the middle refuses to be forked.
        own = kind(local=str(folder), batch_size=BATCH, shuffle=True)

        def streamed(own: Any = own, count: int = count) -> Any:
            return DataLoader(own, batch_size=BATCH, num_workers=count, collate_fn=collated)

        try:
            say(what="StreamingDataset, batches", workers=count, rate=rate(batches(streamed), seconds))
        except RuntimeError as error:
            say(what="StreamingDataset, batches", workers=count, failed=str(error)[-300:])


def write(folder: Path, compression: str | None) -> None:
    columns = json.loads((folder / "columns.json").read_text())
    arrays = dict(np.load(folder / "samples.npz", allow_pickle=False))
    rows = [
        {name: _plain(values[row], columns[name]) for name, values in arrays.items()}
        for row in range(len(next(iter(arrays.values()))))
    ]
    out = folder / "theirs"
    shutil.rmtree(out, ignore_errors=True)
    start = time.perf_counter()
    with streaming.MDSWriter(out=str(out), columns=columns, compression=compression) as writer:
        for row in rows:
            writer.write(row)
    spent = time.perf_counter() - start
    shutil.rmtree(out)
    say(what="MDSWriter", compression=compression, rate=len(rows) / spent)


def _plain(value: Any, encoding: str) -> Any:
    return int(value) if encoding == "int" else value.tobytes() if encoding == "bytes" else value


def remote(uri: str, folder: Path, workers: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    start = time.perf_counter()
    dataset = streaming.StreamingDataset(remote=uri, local=str(folder), batch_size=BATCH, shuffle=True)
    count = 0
    for batch in DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=collated):
        count += len(next(iter(batch.values())))
    say(what="StreamingDataset, first epoch", workers=workers, rate=count / (time.perf_counter() - start))
    shutil.rmtree(folder)


def start(folder: Path) -> None:
    began = time.perf_counter()
    dataset = streaming.StreamingDataset(local=str(folder), batch_size=BATCH, shuffle=True)
    next(iter(DataLoader(dataset, batch_size=BATCH, collate_fn=collated)))
    say(what="start", importing=IMPORTED, first_batch=time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["read", "write", "remote", "start"])
    parser.add_argument("places", nargs="+")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--compression")
    args = parser.parse_args()
    streaming.base.util.clean_stale_shared_memory()
    folder = Path(args.places[-1])
    if args.what == "read":
        read(folder, args.seconds, args.workers)
    elif args.what == "write":
        write(folder, args.compression)
    elif args.what == "remote":
        for count in args.workers:
            remote(args.places[0], folder, count)
    else:
        start(folder)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
