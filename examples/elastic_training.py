"""Training that is killed and goes on with fewer ranks: four processes, then two, and no sample lost or repeated.

    python examples/elastic_training.py --work /tmp/elastic

Four ranks on gloo train a small model, with a checkpoint every few steps, until all are killed at a random step. Two
ranks then go on from the last checkpoint to the end. Each checkpoint holds a digest of the samples that the weights
have seen, step by step; at the end it is compared with that of one process that was never stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic

import numpy as np
import torch
import torch.distributed as dist

import seqlake as sl

WINDOW = {"obs_state": range(-1, 1), "action": range(8)}
GLOBAL_BATCH = 48  # of all ranks together: steps stay the same when the number of ranks changes
PATIENCE = 120.0  # seconds for a run


def make_dataset(location: Path, *, sequences: int) -> None:
    """Sequences of unlike lengths, of an arm that is driven at random."""
    schema = sl.Schema({"obs_state": sl.Trajectory(dim=6, fps=50), "action": sl.Trajectory(dim=3, fps=50)})
    generator = np.random.default_rng(0)
    with sl.create(location, schema).writer() as writer:
        for number in range(sequences):
            steps = int(generator.integers(10, 40))
            arrays = {"obs_state": generator.normal(size=(steps, 6)), "action": generator.normal(size=(steps, 3))}
            writer.add(f"ep_{number:04}", **arrays)


def make_loader(location: Path, *, rank: int = 0, world_size: int = 1) -> sl.Loader:
    """The loader of one rank; `seed` and the global batch are what all runs share."""
    dataset = sl.open(location)
    loader = sl.Loader(dataset, window=WINDOW, batch_size=1, seed=3, rank=rank, world_size=world_size)
    return loader.global_batch(GLOBAL_BATCH)


def names(batch: dict[str, object]) -> list[str]:
    """What identifies the samples of a batch."""
    return [f"{name}@{start}" for name, start in zip(batch["sequence_id"], batch["start"].tolist(), strict=True)]


def chained(digest: str, samples: list[str]) -> str:
    """The digest after one more step: other samples in any step, other digest."""
    return hashlib.sha256((digest + " ".join(sorted(samples))).encode()).hexdigest()


# ---- one rank


def train(work: Path, rank: int, world_size: int, *, epochs: int, save_every: int, kill_at: int | None) -> None:
    """Train from the last checkpoint on to the end of the last epoch, or up to the middle of the step `kill_at`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{work}/meet-{world_size}", rank=rank, world_size=world_size)
    loader = make_loader(work / "data", **sl.ranks("torch.distributed"))
    model = torch.nn.Linear(2 * 6, 8 * 3)
    torch.nn.init.zeros_(model.weight)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = {"step": 0, "digest": "", "samples": []}
    if (work / "checkpoint.pt").exists():
        saved = torch.load(work / "checkpoint.pt")
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        seen = saved["seen"]
    while loader.state_dict()["epoch"] < epochs:
        for batch in loader.torch():
            if seen["step"] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)  # nothing is flushed, closed or said
            _step(model, optimiser, batch)
            everyone: list[list[str]] = [[] for _ in range(world_size)]
            dist.all_gather_object(everyone, names(batch))
            samples = [name for own in everyone for name in own]
            digest = chained(seen["digest"], samples)
            seen = {"step": seen["step"] + 1, "digest": digest, "samples": [*seen["samples"], *samples]}
            if rank == 0 and (seen["step"] % save_every == 0 or loader.state_dict()["epoch"] == epochs):
                state = {"model": model.state_dict(), "loader": loader.state_dict(), "seen": seen}
                _save(state, work / "checkpoint.pt")
    dist.barrier()
    dist.destroy_process_group()


def _step(model: torch.nn.Linear, optimiser: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    """One step on the mean over all samples of all ranks, which may have unlike numbers of them."""
    guess = model(batch["obs_state"].flatten(1)).view(-1, 8, 3)
    error = ((guess - batch["action"]) ** 2).mean(-1)
    loss = (error * batch["action_mask"]).sum() / GLOBAL_BATCH
    optimiser.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimiser.step()


def _save(state: dict[str, object], path: Path) -> None:
    """All of it or nothing: a kill in between leaves the checkpoint before."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


# ---- all ranks


def run(work: Path, world_size: int, *, epochs: int, save_every: int, kill_at: int | None = None) -> list[int]:
    """One process for each rank, until all have ended or, when one was killed, are killed; their exit codes."""
    # Where there is a server of forks it imports, once for all ranks, what takes long: of torch also what an optimiser
    # imports at its first step.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload(["torch._dynamo", "pandas"])
    how = {"epochs": epochs, "save_every": save_every, "kill_at": kill_at}
    ranks = [context.Process(target=train, args=(work, rank, world_size), kwargs=how) for rank in range(world_size)]
    for process in ranks:
        process.start()
    until = monotonic() + PATIENCE
    while any(process.is_alive() for process in ranks):
        late = monotonic() > until
        if late or any(process.exitcode for process in ranks):
            for process in ranks:  # the others would wait for the dead
                process.kill()
        if late:
            raise TimeoutError(f"{world_size} ranks have not ended after {PATIENCE:g} seconds.")
        wait([process.sentinel for process in ranks if process.is_alive()], timeout=1)
    return [process.exitcode for process in ranks]


def uninterrupted(location: Path, *, epochs: int) -> tuple[int, str]:
    """Steps and digest of one process that was never stopped."""
    loader, steps, digest = make_loader(location), 0, ""
    for _ in range(epochs):
        for batch in loader:
            steps, digest = steps + 1, chained(digest, names(batch))
    return steps, digest


def main(arguments: list[str] | None = None) -> int:
    """Kill, resume, compare; 0 where nothing was lost or repeated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="an empty folder; a temporary one by default")
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--kill-at", type=int, help="the step in whose middle all ranks are killed; random by default")
    parser.add_argument("--ranks", type=int, nargs=2, default=(4, 2), help="before and after the kill")
    options = parser.parse_args(arguments)
    work = options.work or Path(tempfile.mkdtemp(prefix="elastic-"))
    make_dataset(work / "data", sequences=options.sequences)
    print(make_loader(work / "data").plan(), end="\n\n")
    steps, expected = uninterrupted(work / "data", epochs=options.epochs)

    how = {"epochs": options.epochs, "save_every": options.save_every}
    before, after = options.ranks
    kill_at = random.randrange(options.save_every, steps) if options.kill_at is None else options.kill_at
    codes = run(work, before, kill_at=kill_at, **how)
    reached = torch.load(work / "checkpoint.pt")["seen"]["step"]
    print(f"{before} ranks: killed in step {kill_at} of {steps} ({codes}), the last checkpoint is of step {reached}")
    codes = run(work, after, **how)
    if any(codes):
        print(f"{after} ranks: ended with {codes}")
        return 1

    seen = torch.load(work / "checkpoint.pt")["seen"]
    counts = Counter(seen["samples"])
    print(f"{after} ranks: went on to step {seen['step']}")
    print(f"{len(seen['samples'])} samples, {len(counts)} different ones, each at most {max(counts.values())} times")
    print(f"digest {seen['digest'][:16]}, uninterrupted {expected[:16]}")
    good = (seen["step"], seen["digest"]) == (steps, expected)
    print("nothing lost, nothing repeated" if good else "THE TWO DIFFER")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
