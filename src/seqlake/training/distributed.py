"""Rank and world size from whoever started this process; read when asked, never guessed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Launcher = Literal["torch.distributed", "accelerate", "torchrun", "slurm"]
LAUNCHERS: tuple[Launcher, ...] = get_args(Launcher)

_OTHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


class RankAndSize(TypedDict):
    """What `Loader` takes of them."""

    rank: int
    world_size: int


def ranks(launcher: Launcher | None = None, /) -> RankAndSize:
    """This process's rank and the number of processes, as `Loader` takes them.

    Read are: the process group of `torch.distributed` and Accelerate's state, where the program has set them up;
    `RANK` and `WORLD_SIZE` as torchrun sets them; `SLURM_PROCID` and `SLURM_STEP_NUM_TASKS` (or `SLURM_NTASKS`). All
    that are there must agree. SLURM is not asked where torchrun says that it started this process: SLURM's tasks are
    then the torchruns.

    Args:
        launcher: Ask only this one; by default all.

    Returns:
        `{"rank": ..., "world_size": ...}`; rank 0 of 1 where nothing says otherwise.

    Raises:
        RuntimeError: Two that contradict each other, one that says only half, an MPI launcher that alone has started
            several processes, or a `launcher` that has not started this one.
        ValueError: No such launcher.

    Example:
        >>> from seqlake import Loader
        >>> loader = Loader(dataset, window={"action": range(16)}, batch_size=64, **ranks())
    """
    if launcher is not None and launcher not in LAUNCHERS:
        raise ValueError(f"ranks: expected one of {', '.join(LAUNCHERS)}, found {launcher!r}.")
    environment = os.environ
    answers = {name: ask(environment) for name, ask in _ASK.items() if launcher in {None, name}}
    said = {name: one for name, one in answers.items() if one is not None}
    if launcher is not None and not said:
        raise RuntimeError(f"ranks: {launcher} says nothing of this process. Set it up first, or start it with it.")
    if launcher is None and "TORCHELASTIC_RUN_ID" in environment and "torchrun" in said:
        said.pop("slurm", None)
    if len(set(said.values())) > 1:
        parts = ", ".join(f"{name} says rank {rank} of {size}" for name, (rank, size) in said.items())
        raise RuntimeError(
            f"ranks: the environment contradicts itself: {parts}. Say which one counts, as in "
            f"ranks({next(iter(said))!r}), or give rank= and world_size= yourself."
        )
    if not said:
        other = next((name for name in _OTHERS if environment.get(name, "1") != "1"), None)
        if other is not None:
            raise RuntimeError(
                f"ranks: {other}={environment[other]} says that MPI started several processes, and nothing that is "
                "asked here knows this one's rank. Give rank= and world_size= yourself."
            )
        return RankAndSize(rank=0, world_size=1)
    rank, size = next(iter(said.values()))
    if not 0 <= rank < size:
        raise RuntimeError(f"ranks: {next(iter(said))} says rank {rank} of {size}, and ranks are 0 to {size - 1}.")
    return RankAndSize(rank=rank, world_size=size)


def _torch_distributed(_: Mapping[str, str]) -> tuple[int, int] | None:
    # A process group exists only where the program has imported it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _accelerate(_: Mapping[str, str]) -> tuple[int, int] | None:
    state = sys.modules.get("accelerate.state")
    # Making a PartialState would set it up; the shared dict is filled once the program has.
    shared = {} if state is None else state.PartialState._shared_state  # noqa: SLF001 - there is no public way to look
    return (shared["process_index"], shared["num_processes"]) if "num_processes" in shared else None


def _torchrun(environment: Mapping[str, str]) -> tuple[int, int] | None:
    return _pair(environment, "RANK", "WORLD_SIZE")


def _slurm(environment: Mapping[str, str]) -> tuple[int, int] | None:
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    # `salloc` and the login shell of a batch job have a size and no task.
    return _pair(environment, "SLURM_PROCID", size) if "SLURM_PROCID" in environment else None


def _pair(environment: Mapping[str, str], rank: str, size: str) -> tuple[int, int] | None:
    values = [environment.get(name, "").strip() for name in (rank, size)]
    if not any(values):
        return None
    if not all(value.isdecimal() for value in values):
        raise RuntimeError(
            f"ranks: expected whole numbers in {rank} and {size}, found {values[0]!r} and {values[1]!r}. "
            "Set both or none."
        )
    return int(values[0]), int(values[1])


_ASK: dict[Launcher, Callable[[Mapping[str, str]], tuple[int, int] | None]] = {
    "torch.distributed": _torch_distributed,
    "accelerate": _accelerate,
    "torchrun": _torchrun,
    "slurm": _slurm,
}
