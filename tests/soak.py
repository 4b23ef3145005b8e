"""What every run takes of what `scripts/soak` does whole: one place for all tests that are sampled.

A test marked `sampled` stays in every run with some of its parameters; the others get the mark `soak`, too. Without
arguments those stay that have each value of each parameter at least once; with `every=3, start=1` the second item stays
and each third one after it. `scripts/soak` runs all items of such a test. Where it sets `SOAK`, loops inside a test
that leave something out otherwise go through everything.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SOAK = bool(os.environ.get("SEQLAKE_SOAK"))
"""Whether this is the soak."""


def leave(items: Iterable[pytest.Item]) -> None:
    """Mark what of these items of one test is left to the soak."""
    items = [item for item in items if item.get_closest_marker("soak") is None]
    mark = items[0].get_closest_marker("sampled") if items else None
    if mark is None:
        return
    every = mark.kwargs.get("every")
    chosen = items[mark.kwargs.get("start", 0) % len(items) :: every] if every else each_value_once(items)
    for item in items:
        if item not in chosen:
            item.add_marker(pytest.mark.soak)


def each_value_once(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Few of them that have each value of each parameter; what is tried seldom goes first, so that values mix."""
    values = {item: {(name, id(value)) for name, value in params(item).items()} for item in items}
    missing = set().union(*values.values())
    used: Counter[tuple[str, int]] = Counter()
    chosen = [] if missing else list(items)
    while missing:
        best = max(items, key=lambda item: (len(values[item] & missing), -sum(used[one] for one in values[item])))
        chosen.append(best)
        missing -= values[best]
        used.update(values[best])
    return chosen


def params(item: pytest.Item) -> dict[str, object]:
    """The parameters of an item, by name."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
