"""Memory that workers of a `DataLoader` lend: what was sent stays as it is for as long as anybody looks at it."""

from __future__ import annotations

import gc
import os
import pickle
import resource
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from seqlake.training import lending

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files without a name are of Linux")
SIZE = lending._LARGE


def pieces() -> int:
    return len(lending._pieces_of(os.getpid())._pieces)


class Numbered(Dataset):
    """Tensors that hold their own number everywhere, and how many pieces their worker has."""

    def __init__(self, count: int, sizes: tuple[int, ...] = (SIZE,)) -> None:
        self.count = count
        self.sizes = sizes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        made = lending.room((self.sizes[number % len(self.sizes)] // 4,), torch.int32)
        made.fill_(number)
        return made, pieces()


def as_it_is(item):
    return item


def sends(dataset, **options):
    options = {"num_workers": 2, "batch_size": None, "collate_fn": as_it_is, **options}
    return DataLoader(dataset, **options)


@pytest.fixture
def here(monkeypatch):
    """This process takes itself for a worker."""
    monkeypatch.setattr(torch.utils.data, "get_worker_info", object)
    lending._pieces_of.cache_clear()
    yield
    lending._pieces_of.cache_clear()


def through(tensor):
    return pickle.loads(ForkingPickler.dumps(tensor))


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_pages_are_filled_again_and_what_is_held_stays(start):
    held = []
    count = 60 if start == "fork" else 12
    for number, (values, made) in enumerate(sends(Numbered(count), multiprocessing_context=start)):
        assert type(values) is torch.Tensor
        assert values.unique().tolist() == [number]
        if number % 7 == 0:
            held.append((number, values[3:]))
        # two on their way, one being made, one looked at, besides those that are held: of these each worker has half
        assert made <= 5 + len(held)
    del values  # the workers have ended
    assert [(number, view.unique().tolist()) for number, view in held] == [(n, [n]) for n, _ in held]


def test_without_anybody_holding_a_worker_has_few_pieces():
    assert max(made for _, made in sends(Numbered(200, (SIZE, 3 * SIZE)))) <= 4 + lending._SPARE


def test_a_slot_is_free_when_the_last_view_is_gone(here):
    sent = lending.room((SIZE,), torch.uint8)
    sent.fill_(7)
    got = through(sent)
    del sent
    view = got[10:20].numpy()
    del got
    gc.collect()
    other = lending.room((SIZE,), torch.uint8)
    other.fill_(9)
    assert pieces() == 2
    assert view.tolist() == [7] * 10
    del other, view
    gc.collect()
    lending.room((SIZE,), torch.uint8)
    assert pieces() == 2


def test_what_was_sent_twice_is_lent_until_both_are_gone(here):
    sent = lending.room((SIZE,), torch.uint8)
    sent.fill_(1)
    first, second = through(sent), through(sent)
    assert first.data_ptr() != second.data_ptr()
    del sent, first
    gc.collect()
    lending.room((SIZE,), torch.uint8).fill_(2)
    assert second.unique().tolist() == [1]


def test_what_is_still_being_filled_is_not_taken_again(here):
    one, two = lending.room((SIZE,), torch.uint8), lending.room((SIZE,), torch.uint8)
    assert one.fill_(1).data_ptr() != two.fill_(2).data_ptr()
    assert one.unique().tolist() == [1]


def test_sent_more_often_than_there_are_marks(here, monkeypatch):
    monkeypatch.setattr(lending, "_MARKS", 3)  # the pages of a piece begin with them
    sent = lending.room((SIZE,), torch.uint8)
    sent.fill_(5)
    got = [through(sent) for _ in range(5)]
    sent.fill_(6)
    assert [one[0].item() for one in got] == [6, 6, 6, 5, 5]
    del got[:3]
    gc.collect()
    assert pieces() == 1
    assert [one.unique().tolist() for one in got] == [[5], [5]]


def test_a_forked_process_may_look_for_as_long_as_it_likes(here):
    sent = lending.room((SIZE,), torch.uint8)
    sent.fill_(3)
    got = through(sent)
    del sent
    hears, says = os.pipe()
    child = os.fork()
    if not child:  # no test may go on here, whatever happens
        try:
            os.read(hears, 1)
            os._exit(0 if np.all(got.numpy() == 3) else 1)
        finally:
            os._exit(2)
    del got
    gc.collect()
    lending.room((SIZE,), torch.uint8).fill_(4)
    os.write(says, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(hears)
    os.close(says)


def test_a_forked_process_takes_no_mark_away(here):
    sent = lending.room((SIZE,), torch.uint8)
    sent.fill_(3)
    got = through(sent)
    del sent
    lending._loans.clear()  # as if another thread had got it between what is done before a fork and the fork
    child = os.fork()
    if not child:
        try:
            del got
            gc.collect()
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lending.room((SIZE,), torch.uint8).fill_(4)
    assert got.unique().tolist() == [3]


def test_what_is_made_of_it_is_an_ordinary_tensor(here):
    import copy

    lent = lending.room((SIZE,), torch.uint8)
    lent.fill_(1)
    assert isinstance(lent, torch.Tensor)
    for made in (lent[:5], lent + 1, lent.view(2, -1), lent.clone(), copy.deepcopy(lent), copy.copy(lent)):
        assert type(made) is torch.Tensor
    saved = pickle.loads(pickle.dumps(lent))
    assert type(saved) is torch.Tensor
    assert saved.unique().tolist() == [1]


def test_small_ones_and_other_strategies_are_left_to_torch(here, monkeypatch):
    assert type(lending.room((8,), torch.uint8)) is torch.Tensor
    assert lending.sendable(small := torch.zeros(8)) is small
    monkeypatch.undo()
    assert type(lending.room((SIZE,), torch.uint8)) is torch.Tensor
    assert lending.sendable(large := torch.zeros(SIZE)) is large


def test_a_strategy_that_was_chosen_is_kept():
    class Kinds(Numbered):
        def __getitem__(self, number):
            torch.multiprocessing.set_sharing_strategy("file_system")
            made = lending.room((SIZE,), torch.uint8)
            assert type(made) is torch.Tensor
            assert made.is_shared()  # not copied when it is sent
            return made.fill_(number)

    assert [one.unique().tolist() for one in sends(Kinds(4))] == [[0], [1], [2], [3]]


def test_memory_that_is_not_there_is_an_error(here):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, before[1]))
    try:
        with pytest.raises(MemoryError, match=r"fewer workers, a lower prefetch_factor or smaller batches"):
            lending.room((SIZE,), torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert pieces() == 0


def test_files_and_maps_end_with_what_used_them(here):
    def opened() -> int:
        files = Path("/proc/self/fd").iterdir()
        return sum("seqlake-batch" in str(file.readlink()) for file in files if file.is_symlink())

    for _ in range(20):
        through(lending.room((SIZE,), torch.uint8))
    gc.collect()
    assert opened() <= 2 * (1 + lending._SPARE)
    lending._pieces_of.cache_clear()
    gc.collect()
    assert opened() == 0
    assert not lending._loans
