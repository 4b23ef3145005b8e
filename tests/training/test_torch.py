"""The loader in torch's hands: the same batches, the same order, the same memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from seqlake.training.loader import Loader
from seqlake.training.mixtures.schedule import Mix
from seqlake.windows.spec import Whole, Window

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


@pytest.mark.parametrize("tail", ["drop", "carry", "pad"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_sampler_gives_a_map_style_dataset_the_loaders_order(loader, tail, shuffle, readable, arm):
    source = readable(*arm(LENGTHS))
    for kind in (source, Mix({"a": (source, 2), "b": (readable(*arm([4, 9, 2])), 1)})):
        ranks = [
            Loader(
                kind, window=Window({"action": [0]}, stride=2), batch_size=5, shuffle=shuffle, rank=rank, world_size=2
            )
            for rank in range(2)
        ]
        for each in ranks:
            ours = each.tail(tail)
            sampler = ours.sampler()
            assert len(sampler) == len(ours)
            for _ in range(2):
                before = ours.state_dict()
                expected = [key(batch) for batch in ours]
                after = ours.state_dict()
                ours.load_state_dict(before)
                assert [key(batch) for batch in DataLoader(ours.dataset(), batch_sampler=sampler)] == expected
                assert ours.state_dict() == after


def test_the_sampler_begins_where_the_state_is(loader):
    whole = [key(batch) for batch in loader]
    loader.set_epoch(0)
    loader.load_state_dict(loader.state_dict(steps=4))
    batches = DataLoader(loader.dataset(), batch_sampler=loader.sampler(), num_workers=1)
    assert [key(batch) for batch in batches] == whole[4:]


def test_pinning_without_a_gpu_is_told_and_changes_nothing(loader, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    expected = [key(batch) for batch in loader]
    loader.set_epoch(0)
    with pytest.warns(UserWarning, match="torch sees no GPU here"):
        assert [key(batch) for batch in loader.torch(pin_memory=True)] == expected


def test_pinned_batches_are_pinned_tensor_by_tensor_and_not_in_workers(loader, monkeypatch):
    """There is no GPU in CI: what is asked of torch is recorded."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: asked.append(self.dtype) or self)
    batch = next(iter(loader.torch(pin_memory=True)))
    assert len(asked) == sum(isinstance(value, torch.Tensor) for value in batch.values()) >= 3
    asked.clear()
    next(iter(loader.torch()))
    assert not asked
    copied = pickle.loads(pickle.dumps(loader.torch(pin_memory=True)))
    assert copied.pin_memory
    assert isinstance(copied, IterableDataset)


def test_packed_sequences_one_by_one(readable, arm):
    schema, rows = arm([3, 0, 5])
    loader = Loader(readable(schema, rows), window=Whole(["action", "task"], packed=True), batch_size=2, shuffle=False)
    for row, sample in enumerate(loader.dataset().__getitems__([0, 1, 2])):
        np.testing.assert_array_equal(sample["action"], rows[row]["action"])
        assert sample["task"] == rows[row]["task"]
        assert sample["action_offsets"].tolist() == [0, len(rows[row]["action"])]
    with pytest.raises(ValueError, match="use map_batch"):
        loader.map(lambda sample: sample)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("given", [{}, {"batch_size": 32}])
def test_a_data_loader_that_would_stack_batches_says_what_to_write(loader, workers, given):
    with pytest.raises(TypeError, match=r"DataLoader\(loader.torch\(\), batch_size=None\)"):
        next(iter(DataLoader(loader.torch(), num_workers=workers, **given)))


def test_a_data_loader_with_a_collation_of_its_own_may_take_several(loader):
    expected = [key(batch) for batch in loader][:2]
    loader.set_epoch(0)
    together = DataLoader(loader.torch(), batch_size=2, collate_fn=lambda batches: [key(b) for b in batches])
    assert next(iter(together)) == expected


@pytest.mark.parametrize("given", [{}, {"batch_size": 32}, {"batch_size": None}])
def test_a_data_loader_of_a_loader_says_what_to_write(loader, given):
    with pytest.raises(TypeError, match=r"DataLoader\(loader.torch\(\), batch_size=None\)"):
        next(iter(DataLoader(loader, **given)))
    with pytest.raises(TypeError, match="has no numbered batches"):
        loader[0]
