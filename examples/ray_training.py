"""Ray Train that is killed and goes on with more workers: two, then three, and no sample lost or repeated.

    python examples/ray_training.py --work /tmp/ray-training

Each worker of a `TorchTrainer` has a `Loader` of its own: `sl.ranks()` asks the process group that Ray has set up, and
the global batch makes steps the same for any number of workers. Two workers train, with a checkpoint every few steps,
until one is killed in the middle of a step; Ray then stops the other. A trainer of three workers goes on from the last
checkpoint. Each checkpoint holds a digest of the samples that the weights have seen, step by step; at the end it is
compared with that of one process that was never stopped.

Ray is started on this machine, or joined where RAY_ADDRESS says; the folder must be one that all its machines see.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import ray
import torch
import torch.distributed as dist
from elastic_training import GLOBAL_BATCH, chained, make_dataset, make_loader, names, uninterrupted
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import seqlake as sl


def train(config: dict[str, object]) -> None:
    """What each worker runs: from the last checkpoint on to the end, or up to the middle of the step `kill_at`."""
    torch.set_num_threads(1)
    work = Path(str(config["work"]))
    loader = make_loader(work / "data", **sl.ranks("torch.distributed"))
    network = torch.nn.Linear(2 * 6, 8 * 3)
    torch.nn.init.zeros_(network.weight)
    seen = {"step": 0, "digest": "", "samples": []}
    if (work / "checkpoint.pt").exists():
        saved = torch.load(work / "checkpoint.pt")
        network.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        seen = saved["seen"]
    model = prepare_model(network)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    while loader.state_dict()["epoch"] < config["epochs"]:
        for batch in loader.torch():
            if seen["step"] == config["kill_at"] and dist.get_rank() == dist.get_world_size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            step(model, optimiser, batch)
            everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
            dist.all_gather_object(everyone, names(batch))
            samples = [name for own in everyone for name in own]
            digest = chained(seen["digest"], samples)
            seen = {"step": seen["step"] + 1, "digest": digest, "samples": [*seen["samples"], *samples]}
            last = loader.state_dict()["epoch"] == config["epochs"]
            if dist.get_rank() == 0 and (last or seen["step"] % config["save_every"] == 0):
                save(
                    {"model": network.state_dict(), "loader": loader.state_dict(), "seen": seen}, work / "checkpoint.pt"
                )
    dist.barrier()  # the checkpoint is there before any worker ends


def step(model: torch.nn.Module, optimiser: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    """One step on the mean over the samples of all workers, which may have unlike numbers of them."""
    guess = model(batch["obs_state"].flatten(1)).view(-1, 8, 3)
    error = ((guess - batch["action"]) ** 2).mean(-1)
    loss = (error * batch["action_mask"]).sum() / GLOBAL_BATCH * dist.get_world_size()  # gradients are averaged
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def save(state: dict[str, object], path: Path) -> None:
    """All of it or nothing: a kill in between leaves the checkpoint before."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def run(work: Path, workers: int, **config: object) -> str:
    """One training run; the class of its error, or nothing."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"work": str(work), "kill_at": None, **config},
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(name=f"workers-{workers}", storage_path=str(work / "ray")),
    )
    try:
        trainer.fit()
    except ray.train.TrainingFailedError as error:
        return type(error).__name__
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Kill, resume, compare; 0 where nothing was lost or repeated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="an empty folder; a temporary one by default")
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--kill-at", type=int, default=11, help="the step in whose middle a worker is killed")
    parser.add_argument("--workers", type=int, nargs=2, default=(2, 3), help="before and after the kill")
    options = parser.parse_args(arguments)
    work = options.work or Path(tempfile.mkdtemp(prefix="ray-training-"))
    make_dataset(work / "data", sequences=options.sequences)
    steps, expected = uninterrupted(work / "data", epochs=options.epochs)

    where = {} if "RAY_ADDRESS" in os.environ else {"address": "local", "num_cpus": 4, "include_dashboard": False}
    ray.init(log_to_driver=False, **where)
    how = {"epochs": options.epochs, "save_every": options.save_every}
    before, after = options.workers
    failure = run(work, before, kill_at=options.kill_at, **how)
    reached = torch.load(work / "checkpoint.pt")["seen"]["step"]
    print(f"{before} workers: {failure} in step {options.kill_at} of {steps}, the last checkpoint is of step {reached}")
    failure = run(work, after, **how)
    if failure:
        print(f"{after} workers: ended with {failure}")
        return 1
    seen = torch.load(work / "checkpoint.pt")["seen"]
    counts = Counter(seen["samples"])
    print(f"{after} workers: went on to step {seen['step']}")
    print(f"{len(seen['samples'])} samples, {len(counts)} different ones, each at most {max(counts.values())} times")
    print(f"digest {seen['digest'][:16]}, uninterrupted {expected[:16]}")
    good = (seen["step"], seen["digest"]) == (steps, expected)
    print("nothing lost, nothing repeated" if good else "THE TWO DIFFER")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
