"""Items of one batch that know it: torch's own collation then takes the batch, instead of stacking its parts again."""

from __future__ import annotations

from functools import cache
from typing import Any

from seqlake.plugins import require

Values = dict[str, Any]


class BatchItem(dict[str, Any]):
    """One item, a dict like any other, with the batch that it was gathered in.

    Attributes:
        batch: Feature -> values of all items, [N, ...].
        place: Which of them this one is.
        given: Its values as they were.

    Args:
        batch: See there.
        place: See there.
    """

    __slots__ = ("batch", "given", "place")

    def __init__(self, batch: Values, place: int, /) -> None:
        super().__init__({name: values[place] for name, values in batch.items()})
        self.batch: Values = batch
        self.place: int = place
        self.given: tuple[Any, ...] = tuple(self.values())

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """It travels as the plain dict that it is."""
        return dict, (dict(self),)


def items_of(batch: Values, count: int, /) -> list[Values]:
    """The items of a batch.

    Args:
        batch: Feature -> values of all items.
        count: How many there are.
    """
    _register()
    return [BatchItem(batch, place) for place in range(count)]


@cache
def _register() -> None:
    """Tell torch's collation, which asks by type; the place for that is a table of its own."""
    torch_collate = require("torch.utils.data._utils.collate", extra="torch")
    torch_collate.default_collate_fn_map[BatchItem] = _collated


def _collated(items: list[Any], *, collate_fn_map: Any = None) -> Any:
    del collate_fn_map
    first = items[0]
    if all(_is_whole(item, place, first.batch) for place, item in enumerate(items)) and _count(first.batch) == len(
        items
    ):
        return dict(first.batch)
    default = require("torch.utils.data", extra="torch").default_collate
    return default([dict(item) for item in items])


def _is_whole(item: Any, place: int, batch: Values) -> bool:
    """Whether nobody has changed or moved an item."""
    if type(item) is not BatchItem or item.batch is not batch or item.place != place or len(item) != len(batch):
        return False
    return all(one is two for one, two in zip(item.values(), item.given, strict=True)) and list(item) == list(batch)


def _count(batch: Values) -> int:
    return len(next(iter(batch.values()), ()))
