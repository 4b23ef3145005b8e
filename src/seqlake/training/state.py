"""Where a loader is, as a small JSON value that every rank agrees on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seqlake.errors import LoaderStateError
from seqlake.training.order import ORDER_VERSION

if TYPE_CHECKING:
    from seqlake.training.order import Shuffle

FORMAT = "seqlake loader state 1"

_MEANING = {
    "format": "the form of the state",
    "order": "the version of the order algorithm",
    "fingerprint": "the dataset (its rows, their order or their bytes), or the selection from it",
    "window": "the window",
    "samples": "the number of windows",
    "seed": "the seed",
    "shuffle": "the shuffle (its lanes, block or visits)",
    "tail": "the tail rule",
    "mix": "the mixture (its sources, weights, curriculum or shuffle)",
}


def describe(
    *, fingerprint: str, window: str, samples: int, seed: int, shuffle: Shuffle | None, tail: str, mix: str | None
) -> dict[str, Any]:
    """What a position means something for: everything that decides which sample comes when."""
    return {
        "format": FORMAT,
        "order": ORDER_VERSION,
        "fingerprint": fingerprint,
        "window": window,
        "samples": samples,
        "seed": seed,
        "shuffle": None if shuffle is None else _mixing(shuffle),
        "tail": tail,
        "mix": mix,
    }


def _mixing(shuffle: Shuffle) -> list[int]:
    visits = [] if shuffle.visits == 1 else [shuffle.visits]
    return [shuffle.lanes, shuffle.block, *visits]


def position(state: Mapping[str, Any], here: Mapping[str, Any], /) -> tuple[int, int]:
    """The (epoch, sample) of a state, if it belongs here.

    Args:
        state: What `state_dict` gave.
        here: `describe` of this loader.

    Raises:
        LoaderStateError: It is not a state, or one of another dataset, window or order; says what differs.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        form = state.get("format") if isinstance(state, Mapping) else type(state).__name__
        raise LoaderStateError(f"Expected a loader's state_dict ({FORMAT!r}), found {form!r}.")
    # JSON, msgpack and torch.save give lists back as lists or tuples.
    changed = [name for name in here if _plain(state.get(name)) != _plain(here[name])]
    if changed:
        parts = "; ".join(f"{_MEANING[each]} (saved {state.get(each)!r}, here {here[each]!r})" for each in changed)
        raise LoaderStateError(
            f"This state belongs to another loader. Changed since it was saved: {parts}.",
            hint="Make the loader as it was, open the dataset at the version it had, or start a new epoch without "
            "load_state_dict. Batch size, rank and world size may differ.",
        )
    epoch, sample = state.get("epoch"), state.get("next_sample")
    if (
        not isinstance(epoch, int)
        or not isinstance(sample, int)
        or not (0 <= epoch < 1 << 62 and 0 <= sample <= here["samples"])
    ):
        raise LoaderStateError(
            f"A state needs an epoch and a sample of it (0 .. {here['samples']}); found {epoch!r} and {sample!r}."
        )
    return epoch, sample


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
