"""Ranks as launchers say them, worker processes however they are started, and other people's loops."""

from __future__ import annotations

import itertools
import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed
from torch.utils.data import DataLoader

import seqlake as sl
from seqlake.errors import ForkedProcessError

PATIENCE = 60  # seconds for worker processes to start on a busy machine
VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "PMI_SIZE",
)


@pytest.fixture
def environment(monkeypatch):
    """A function that sets the launcher's variables; all others of theirs are unset."""
    for name in (*VARIABLES, "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return put


# ---- ranks


def test_without_a_launcher_there_is_one_process(environment):
    assert sl.ranks() == {"rank": 0, "world_size": 1}
    for launcher in ("torch.distributed", "accelerate", "torchrun", "slurm"):
        with pytest.raises(RuntimeError, match=f"{launcher} says nothing"):
            sl.ranks(launcher)
    with pytest.raises(ValueError, match="expected one of"):
        sl.ranks("mpirun")


def test_a_loader_never_looks_for_itself(environment, readable, arm):
    environment(RANK=1, WORLD_SIZE=2)
    loader = sl.Loader(readable(*arm([5, 9])), window={"action": [0]}, batch_size=2)
    assert "rank=0, world_size=1" in repr(loader)
    asked = sl.Loader(readable(*arm([5, 9])), window={"action": [0]}, batch_size=2, **sl.ranks())
    assert "rank=1, world_size=2" in repr(asked)


def test_torchrun_and_slurm(environment):
    environment(SLURM_PROCID=3, SLURM_NTASKS=8)
    assert sl.ranks() == sl.ranks("slurm") == {"rank": 3, "world_size": 8}
    environment(SLURM_STEP_NUM_TASKS=4)  # a step of its own inside a larger job
    assert sl.ranks() == {"rank": 3, "world_size": 4}
    environment(RANK=3, WORLD_SIZE=4)
    assert sl.ranks() == {"rank": 3, "world_size": 4}
    environment(RANK=5, WORLD_SIZE=16)
    with pytest.raises(RuntimeError, match="torchrun says rank 5 of 16, slurm says rank 3 of 4"):
        sl.ranks()
    assert sl.ranks("slurm") == {"rank": 3, "world_size": 4}
    environment(TORCHELASTIC_RUN_ID="job")  # one torchrun a task: SLURM's tasks are the torchruns
    assert sl.ranks() == {"rank": 5, "world_size": 16}


def test_half_a_launcher_is_refused(environment):
    environment(RANK=1)
    with pytest.raises(RuntimeError, match="found '1' and ''"):
        sl.ranks()
    environment(WORLD_SIZE="many")
    with pytest.raises(RuntimeError, match="whole numbers in RANK and WORLD_SIZE"):
        sl.ranks()
    environment(WORLD_SIZE=1)
    with pytest.raises(RuntimeError, match="rank 1 of 1"):
        sl.ranks()


def test_a_login_shell_of_slurm_is_one_process_and_mpi_is_not(environment):
    environment(SLURM_NTASKS=8)
    assert sl.ranks() == {"rank": 0, "world_size": 1}
    environment(OMPI_COMM_WORLD_SIZE=4)
    with pytest.raises(RuntimeError, match="MPI started several"):
        sl.ranks()


def test_torch_distributed_when_the_program_has_set_it_up(environment, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert sl.ranks() == sl.ranks("torch.distributed") == {"rank": 0, "world_size": 1}
        environment(RANK=1, WORLD_SIZE=2)
        with pytest.raises(RuntimeError, match=r"torch\.distributed says rank 0 of 1, torchrun says rank 1 of 2"):
            sl.ranks()
    finally:
        torch.distributed.destroy_process_group()


def test_accelerate_is_looked_at_and_never_set_up(environment, monkeypatch):
    state = ModuleType("accelerate.state")
    state.PartialState = SimpleNamespace(_shared_state={})
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    assert sl.ranks() == {"rank": 0, "world_size": 1}
    state.PartialState._shared_state.update(process_index=2, num_processes=3)
    assert sl.ranks("accelerate") == sl.ranks() == {"rank": 2, "world_size": 3}


# ---- worker processes


def write(location, **options):
    schema = sl.Schema({"action": sl.Trajectory(dim=2)})
    with sl.create(location, schema, **options).writer() as writer:
        for number in range(12):
            writer.add(f"ep_{number:02}", action=np.full((3 + number, 2), number, np.float32))
    return sl.open(location, **options)


def key(batch):
    return list(zip(batch["sequence_id"], batch["start"].tolist(), strict=True))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_however_they_are_started(context, tmp_path):
    if context == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    dataset = write(tmp_path / "arm")
    mix = sl.Mix({"all": (dataset, 2), "late": (dataset.where("sequence_id > 'ep_06'"), 1)}, samples=60)
    for source in [dataset, mix] if context == "fork" else [mix]:  # fresh processes import torch, which takes a while
        loader = sl.Loader(source, window={"action": range(2)}, batch_size=8, seed=5)
        expected = [key(batch) for batch in loader]
        loader.set_epoch(0)
        workers = DataLoader(
            loader.torch(), batch_size=None, num_workers=2, multiprocessing_context=context, timeout=PATIENCE
        )
        assert [key(batch) for batch in workers] == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("fetch", ["whole", "range"])
def test_a_forked_worker_of_remote_data_is_told_within_five_seconds(s3_bucket, fetch):
    uri, storage = s3_bucket
    dataset = write(f"{uri}/arm", storage=storage)
    loader = sl.Loader(dataset, window={"action": range(2)}, batch_size=8, cache=sl.Cache(fetch=fetch))
    next(iter(loader))
    forked = DataLoader(loader.torch(), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=5)
    with pytest.raises(ForkedProcessError, match="forkserver"):
        next(iter(forked))  # a hang would be torch's "timed out"


@pytest.mark.sampled(every=2, start=1)
@pytest.mark.parametrize("fetch", ["whole", "range"])
def test_a_fresh_worker_may_read_remote_data(s3_bucket, fetch):
    uri, storage = s3_bucket
    dataset, cache = write(f"{uri}/arm", storage=storage), sl.Cache(fetch=fetch)
    loader = sl.Loader(dataset, window={"action": range(2)}, batch_size=8, cache=cache)
    expected = [key(batch) for batch in loader]
    loader.set_epoch(0)
    fresh = DataLoader(
        loader.torch(), batch_size=None, num_workers=1, multiprocessing_context="forkserver", timeout=PATIENCE
    )
    assert [key(batch) for batch in fresh] == expected


# ---- other people's loops


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_stateful_dataloader_resumes_by_itself(workers, tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    dataset = write(tmp_path / "arm")

    def make():
        loader = sl.Loader(dataset, window={"action": range(2)}, batch_size=8, seed=5)
        many = {"persistent_workers": True, "timeout": PATIENCE} if workers else {}
        return stateful.StatefulDataLoader(loader.torch(), batch_size=None, num_workers=workers, **many)

    alone = sl.Loader(dataset, window={"action": range(2)}, batch_size=8, seed=5)
    truth = [key(batch) for _ in range(2) for batch in alone]
    assert len(truth) == 24
    for stop in (1, 4, 7):
        first = make()
        seen = [key(batch) for batch in itertools.islice(first, stop)]
        state = first.state_dict()
        del first
        second = make()
        second.load_state_dict(state)
        seen += [key(batch) for _ in range(2) for batch in second]
        assert seen == truth


@pytest.mark.filterwarnings("ignore")  # theirs
def test_accelerate_says_the_rank_and_keeps_the_position(environment, tmp_path, request):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True)
    # It is set up for the process: tests that come after this one would find it.
    request.addfinalizer(lambda: accelerate.state.AcceleratorState._reset_state(reset_partial_state=True))
    assert sl.ranks("accelerate") == {"rank": 0, "world_size": 1}
    dataset = write(tmp_path / "arm")
    loaders = [
        sl.Loader(dataset, window={"action": range(2)}, batch_size=8, seed=5, **sl.ranks("accelerate")) for _ in "ab"
    ]
    truth = [key(batch) for batch in loaders[1]]
    head = [key(batch) for batch in itertools.islice(loaders[0].torch(), 4)]
    accelerator.register_for_checkpointing(loaders[0])
    accelerator.save_state(tmp_path / "state")
    list(loaders[0])
    accelerator.load_state(tmp_path / "state")
    assert head + [key(batch) for batch in loaders[0].torch()] == truth


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("stop", [5, 12, 17])
def test_lightning_saves_and_resumes_the_loader_by_itself(stop, tmp_path, monkeypatch):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    monkeypatch.chdir(tmp_path)
    dataset = write(tmp_path / "arm")

    def make():
        return sl.Loader(dataset, window={"action": range(2)}, batch_size=8, seed=5)

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.seen = []

        def training_step(self, batch, _):
            self.seen.append(key(batch))
            return self.layer(batch["action"].flatten(1)).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_batch_end(self, *_):
            if self.trainer.global_step == stop and not self.trainer.ckpt_path:
                self.trainer.save_checkpoint(tmp_path / "state.ckpt")
                raise KeyboardInterrupt

    def trainer():
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
        return lightning.Trainer(max_epochs=3, use_distributed_sampler=False, enable_model_summary=False, **quiet)

    alone = make()
    truth = [key(batch) for _ in range(3) for batch in alone]
    first, second = Model(), Model()
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer().fit(first, make().torch())
    trainer().fit(second, make().torch(), ckpt_path=tmp_path / "state.ckpt", weights_only=False)
    assert first.seen + second.seen == truth
