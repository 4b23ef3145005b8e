"""Train, validation and test: deterministic, by group, stratified, stored as the column `split`.

Without `stratify` every sequence (or group) is placed by a keyed hash of its id alone: shares hold on average, and
adding sequences moves none that was there. With `stratify` the shares hold within one sequence (or group) of each
stratum, and adding sequences may move some.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter, defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.arguments import DATASET, MAPPING, takes
from seqlake.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.dataset.dataset import Dataset
    from seqlake.dataset.selection import Selection
    from seqlake.protocols import Version


_log = logging.getLogger(__name__)


@takes(dataset=DATASET, shares=MAPPING)
def assign_splits(
    dataset: Dataset,
    shares: Mapping[str, float],
    /,
    *,
    seed: int = 0,
    group: str | None = None,
    stratify: str | None = None,
    column: str = "split",
    message: str | None = None,
) -> Version:
    """Give every sequence the name of a split and commit it; no temporal byte is rewritten.

    Args:
        dataset: What to split.
        shares: Name of each split and its share; together 1.
        seed: Another seed, another assignment.
        group: Sequences with one value of this column stay together (one robot, one scene). Null is a group of one.
        stratify: Each value of this column is split by the same shares, exactly.
        column: Where the names are stored; added if it is not there.
        message: What the commit is for; `versions()` shows it.

    Returns:
        The new version.

    Raises:
        ValidationError: The shares are not positive or do not add up to 1.
        SchemaMismatchError: No such column.

    Example:
        ```python
        assign_splits(ds, {"train": 0.8, "val": 0.1, "test": 0.1}, group="robot_id")
        train = ds.where("split = 'train'")
        ```
    """
    named = split_names(dataset, shares, seed=seed, group=group, stratify=stratify)
    if column in dataset.schema.names:
        labels = pa.table({str(dataset.schema.id): list(named), column: list(named.values())})
        return dataset.update(labels, message=message)
    return dataset.add_column(column, pa.string(), values=named, message=message)


@takes(selection=DATASET, shares=MAPPING)
def plan_splits(
    selection: Selection,
    shares: Mapping[str, float],
    /,
    *,
    seed: int = 0,
    group: str | None = None,
    stratify: str | None = None,
) -> dict[str, int]:
    """How many sequences `assign_splits` would give to each split; writes nothing.

    Example:
        >>> plan_splits(dataset, {"train": 0.75, "val": 0.25})
        {'train': 47, 'val': 17}
    """
    counts = Counter(split_names(selection, shares, seed=seed, group=group, stratify=stratify).values())
    return {name: counts[name] for name in shares}


def split_names(
    selection: Selection,
    shares: Mapping[str, float],
    /,
    *,
    seed: int = 0,
    group: str | None = None,
    stratify: str | None = None,
) -> dict[str, str]:
    """The name of the split of each sequence, by id; reads the id and the named columns only."""
    exact = _shares(shares)
    key = str(selection.schema.id)
    for name in (group, stratify):
        if name is not None:
            selection.schema[name]
    wanted = list(dict.fromkeys(name for name in (key, group, stratify) if name is not None))
    columns = selection.select(*wanted).to_arrow()
    ids = columns.column(key).to_pylist()
    groups = _groups(ids, columns.column(group).to_pylist() if group else None)
    place = {unit: _hash(unit, seed) for unit in dict.fromkeys(groups)}
    if stratify is None:
        of_unit = {unit: _by_hash(number, exact) for unit, number in place.items()}
    else:
        of_unit = _stratified(groups, columns.column(stratify).to_pylist(), place, exact)
    named = {one: of_unit[unit] for one, unit in zip(ids, groups, strict=True)}
    _warn_of_empty(exact, set(named.values()), len(place))
    return named


def _warn_of_empty(shares: Mapping[str, Fraction], given: set[str], units: int) -> None:
    empty = [name for name, share in shares.items() if share and name not in given]
    if empty and units:
        _log.warning(
            "No sequence is in %s: %d sequences or groups are too few for these shares. Each is drawn by itself; "
            "larger shares, another seed or stratify= may fill them.",
            ", ".join(empty),
            units,
        )


def _shares(shares: Mapping[str, float]) -> dict[str, Fraction]:
    if not shares or any(not math.isfinite(share) or share < 0 for share in shares.values()):
        raise ValidationError(f"Expected a positive share for each split, found {dict(shares)}.")
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise ValidationError(f"Expected shares that add up to 1, found {dict(shares)}: {sum(shares.values()):g}.")
    exact = {name: Fraction(share).limit_denominator(10**9) for name, share in shares.items()}
    total = sum(exact.values())
    return {name: share / total for name, share in exact.items()}


def _groups(ids: Sequence[str], values: Sequence[object] | None) -> list[tuple[str, str]]:
    """The unit that each sequence belongs to: its group, or itself."""
    if values is None:
        return [("id", one) for one in ids]
    return [("id", one) if v is None else ("group", str(v)) for one, v in zip(ids, values, strict=True)]


def _hash(unit: tuple[str, str], seed: int) -> int:
    """A 64-bit number that the seed and the unit decide, on every machine."""
    return int.from_bytes(hashlib.blake2b(unit[1].encode(), digest_size=8, key=str(seed).encode()).digest(), "little")


def _by_hash(number: int, shares: Mapping[str, Fraction]) -> str:
    bound = Fraction(0)
    for name, share in shares.items():
        bound += share
        if share and number < bound * 2**64:
            return name
    raise AssertionError("shares add up to 1")


def _stratified(
    groups: Sequence[tuple[str, str]],
    strata: Sequence[object],
    place: Mapping[tuple[str, str], int],
    shares: Mapping[str, Fraction],
) -> dict[tuple[str, str], str]:
    """Each stratum's units in the order of their hashes, each to the split that lacks most."""
    size: Counter[tuple[str, str]] = Counter(groups)
    votes: dict[tuple[str, str], Counter[object]] = defaultdict(Counter)
    for unit, stratum in zip(groups, strata, strict=True):
        votes[unit][stratum] += 1
    members: dict[object, list[tuple[str, str]]] = defaultdict(list)
    for unit, counts in votes.items():
        # A group of several strata counts where most of it lies.
        members[max(counts, key=lambda value: (counts[value], str(value)))].append(unit)
    named: dict[tuple[str, str], str] = {}
    overall = {name: share * len(groups) for name, share in shares.items() if share}
    for units in members.values():
        rows = sum(size[unit] for unit in units)
        lacking = {name: share * rows for name, share in shares.items() if share}
        # Large groups first: what is left for the small ones then evens out.
        for unit in sorted(units, key=lambda unit: (-size[unit], place[unit], unit)):
            named[unit] = _neediest(lacking, overall)
            lacking[named[unit]] -= size[unit]
            overall[named[unit]] -= size[unit]
    return named


def _neediest(lacking: Mapping[str, Fraction], overall: Mapping[str, Fraction]) -> str:
    """The split that lacks most in the stratum; where equal, in the whole, so that odd ones even out."""
    return max(lacking, key=lambda name: (lacking[name], overall[name]))
