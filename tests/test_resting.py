"""What a worker that waits for work gives back."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from seqlake import resting


def test_what_is_kept_for_the_next_task_goes_and_so_does_what_torch_holds_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch stands in for itself here: without a GPU its own has nothing to give back."""
    emptied: list[bool] = []
    used = [False]
    cuda = SimpleNamespace(is_initialized=lambda: used[0], empty_cache=lambda: emptied.append(True))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(resting, "_kept_for_the_next", [])
    models = {"model": object()}
    resting.at_rest(models.clear)
    resting.let_go()
    assert not models
    assert not emptied  # asking would begin with the GPU
    used[0] = True
    resting.let_go()
    assert emptied == [True]
    monkeypatch.delitem(sys.modules, "torch")
    resting.let_go()  # nor is it imported for that
    assert "torch" not in sys.modules
