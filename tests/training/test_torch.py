"""The loader in torch's hands: the same batches, the same order, the same memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from seqlake.training.loader import Loader

LENGTHS = [5, 0, 9, 1, 14, 3, 30, 2, 7, 21, 4, 11]
WINDOW = {"action": range(3), "task": None}


@pytest.fixture
def loader(readable, arm):
    return Loader(readable(*arm(LENGTHS), kind="parquet"), window=WINDOW, batch_size=10, seed=2)


def key(batch):
    return [(name, int(start)) for name, start in zip(batch["sequence_id"], batch["start"], strict=True)]


def test_tensors_share_the_batch_memory(loader):
    from seqlake.training.torch import tensors

    batch = next(iter(loader))
    made = tensors(batch)
    assert isinstance(made["action"], torch.Tensor)
    assert made["action"].data_ptr() == batch["action"].ctypes.data
    assert made["action_mask"].dtype == torch.bool
    assert made["task"] is batch["task"]


def test_iterating_the_torch_dataset_moves_the_loader(loader):
    dataset = loader.torch()
    assert isinstance(dataset, IterableDataset)
    assert len(dataset) == len(loader) == 10
    first = [key(batch) for batch in dataset]
    assert loader.state_dict()["epoch"] == 1
    loader.set_epoch(0)
    assert [key(batch) for batch in loader] == first


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_dataloader_workers_keep_the_order(loader, workers):
    expected = [(key(batch), batch["action"]) for batch in loader]
    loader.set_epoch(0)
    got = list(DataLoader(loader.torch(), batch_size=None, num_workers=workers))
    assert [key(batch) for batch in got] == [names for names, _ in expected]
    for batch, (_, values) in zip(got, expected, strict=True):
        np.testing.assert_array_equal(batch["action"].numpy(), values)


def test_workers_continue_a_state_that_the_user_counted(loader):
    expected = [key(batch) for batch in loader]
    loader.set_epoch(0)
    state = None
    for count, _ in enumerate(DataLoader(loader.torch(), batch_size=None, num_workers=2), 1):
        if count == 4:
            state = loader.state_dict(steps=count)
            break
    loader.load_state_dict(state)
    rest = DataLoader(loader.torch(), batch_size=None, num_workers=2)
    assert [key(batch) for batch in rest] == expected[4:]


def test_persistent_workers_go_on_to_the_next_epoch(loader):
    expected = [[key(batch) for batch in loader] for _ in range(2)]
    loader.set_epoch(0)
    workers = DataLoader(loader.torch(), batch_size=None, num_workers=1, persistent_workers=True)
    assert [[key(batch) for batch in workers] for _ in range(2)] == expected


def test_map_style_windows_by_number(loader):
    windows = loader.dataset()
    assert len(windows) == sum(LENGTHS)
    truth = {(b["sequence_id"][k], int(b["start"][k])): b["action"][k] for b in loader.tail("pad") for k in range(10)}
    order = [(f"ep_{k:04d}", t) for k, steps in enumerate(LENGTHS) for t in range(steps)]
    for number in (0, 7, 50, -1):
        sample = windows[number]
        assert (sample["sequence_id"], int(sample["start"])) == order[number]
        np.testing.assert_array_equal(sample["action"], truth[order[number]])
    many = windows.__getitems__([3, 3, -2, 60])
    assert [(s["sequence_id"], int(s["start"])) for s in many] == [order[k] for k in (3, 3, -2, 60)]
    with pytest.raises(IndexError, match="numbered"):
        windows[len(windows)]


def test_map_style_under_a_dataloader(loader):
    windows = loader.dataset()
    batches = DataLoader(windows, batch_size=20, sampler=SequentialSampler(windows), num_workers=1)
    got = [int(start) for batch in batches for start in batch["start"]]
    assert got == [t for steps in LENGTHS for t in range(steps)]
