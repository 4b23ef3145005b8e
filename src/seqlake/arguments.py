"""What users give to a format's own functions, looked at by name before anything is done with it."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=type)
MOST_STEPS = 1 << 20
"""Frames of a window: at ten a second, more than a day."""


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def bytes_of(size: int | str, /, *, name: str) -> int:
    """A size in bytes, as a number or as people write it.

    Args:
        size: What was given.
        name: What messages call it.

    Raises:
        ValueError: It is no size.

    Example:
        >>> bytes_of("1.5 GB", name="limit")
        1500000000
    """
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?i?)b?\s*", size.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{name}: expected bytes or a size such as '20 GB', found {size!r}.")
    return int(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True, slots=True)
class Kind:
    """What an argument ought to be.

    Attributes:
        text: In words, after "expected".
        fits: Whether a value is one; errors of its own mean that it is none.
    """

    text: str
    fits: Callable[[Any], bool]

    def check(self, what: str, value: object, /) -> None:
        """Refuse another value.

        Args:
            what: The argument, as messages name it.
            value: What was given.

        Raises:
            ValueError: It does not fit.
        """
        try:
            right = self.fits(value)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
            right = False
        if not right:
            raise ValueError(f"{what}: expected {self.text}, found {reprlib.repr(value)}.")

    def or_none(self) -> Kind:
        """The same, or nothing."""
        return Kind(f"{self.text} or None", lambda value: value is None or self.fits(value))


def whole(least: int | None = None, most: int | None = None, /) -> Kind:
    """A whole number in these bounds, both included; numpy's own count as well, booleans do not."""
    parts = [
        "a whole number",
        *([] if least is None else [f"from {least:,} on"]),
        *([] if most is None else [f"at most {most:,}"]),
    ]

    def fits(value: Any) -> bool:
        number = _index(value)
        return (least is None or least <= number) and (most is None or number <= most)

    return Kind(" ".join(parts), fits)


def with_fields(*fields: str) -> Kind:
    """Structured rows, in memory or of a store, with these fields."""
    named = f", with the fields {', '.join(fields)}" if fields else ""

    def fits(value: Any) -> bool:
        return value.dtype.names is not None and {*fields} <= {*value.dtype.names} and len(value.shape) < 2

    return Kind(f"rows as slicing a store gives them{named}", fits)


def a(kind: type | tuple[type, ...], text: str, /) -> Kind:
    """Something of one class, as `text` describes it."""
    return Kind(text, lambda value: isinstance(value, kind))


def array(shape: str, dimensions: int, /) -> Kind:
    """Numbers in an array of numpy's, as `shape` describes them."""
    return Kind(
        f"an array {shape}",
        lambda value: isinstance(value, np.ndarray) and value.ndim == dimensions and value.dtype.kind in "biuf",
    )


def _index(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError
    return operator.index(value)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float, np.integer, np.floating))
        and not isinstance(value, bool)
        and not math.isnan(value)
    )


INDEX = whole()
COUNT = whole(0, 1 << 62)
STEPS = whole(0, MOST_STEPS)
SECONDS = Kind("a number of seconds above 0", lambda value: _is_number(value) and 0 < value < math.inf)
NUMBER = Kind("a number", _is_number)
FLAG = Kind("True or False", lambda value: isinstance(value, (bool, np.bool_, int)) and value in (0, 1))
TEXT = a(str, "text")
MAPPING = a(Mapping, "a dict")
TEXTS = Kind(
    "a list of texts, as ['train']",
    lambda value: not isinstance(value, (str, bytes, Mapping)) and all(isinstance(one, str) for one in value),
)
DATASET = Kind(
    "an open dataset or a selection of one, as sl.open(location) gives",
    lambda value: not isinstance(value, (str, bytes, PathLike, list, tuple, Mapping, int, float, type(None))),
)
DATASETS = Kind(
    "a list of open datasets, as [sl.open(location), ...]",
    lambda value: isinstance(value, (list, tuple)) and all(map(DATASET.fits, value)),
)
TEXT_OR_TEXTS = Kind("text or a list of texts", lambda value: isinstance(value, str) or TEXTS.fits(value))


def takes(**kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Look at these arguments, by name, in every call.

    Raises:
        ValueError: In a call, one that does not fit: what was expected, and what was given.

    Example:
        >>> @takes(steps=whole(0))
        ... def double(steps):
        ...     return 2 * steps
        >>> double("x")
        Traceback (most recent call last):
            ...
        ValueError: steps: expected a whole number from 0 on, found 'x'.
    """

    def around(call: Callable[P, R]) -> Callable[P, R]:
        names = tuple(inspect.signature(call).parameters)

        @functools.wraps(call)
        def checked(*args: P.args, **options: P.kwargs) -> R:
            for name, value in (*zip(names, args, strict=False), *options.items()):
                if name in kinds:
                    kinds[name].check(name, value)
            return call(*args, **options)

        return checked

    return around


def check_fields(instance: Any, /, **kinds: Kind) -> None:
    """The same of a dataclass's attributes; for `__post_init__`."""
    for name, kind in kinds.items():
        kind.check(name, getattr(instance, name))


_THREADS = (
    "seqlake counts no workers; for worker processes DataLoader(loader.torch(), batch_size=None, num_workers=...)"
)
_ALONE = "leave it out: shards go straight to the location, tried again where a request fails"
_AHEAD = "leave it out: what comes next is fetched ahead, and tried again"
_EXACT = "StreamingOrder of seqlake.compat.mosaicml: "
MOSAICML = {
    "allow_unsafe_types": "allow_pickle=[...], the columns whose pickles may run",
    "batching_method": f"{_EXACT}batching=",
    "cache_limit": "Loader(cache=sl.Cache(folder, limit=...))",
    "collate_fn": "loader.map_batch(fn)",
    "download_retry": _AHEAD,
    "download_timeout": 'storage={"timeout": ...}',
    "drop_last": 'loader.tail("drop"), or "pad"',
    "epoch_size": "sl.Mix.of_streams(..., epoch_size=...)",
    "keep_local": _ALONE,
    "keep_zip": "leave it out: the folder of sl.Cache holds what the reader needs",
    "local": "the location, sl.scan(folder); with a remote one Loader(cache=sl.Cache(folder))",
    "max_workers": _ALONE,
    "num_canonical_nodes": f"{_EXACT}canonical_nodes=",
    "num_workers": _THREADS,
    "partition_algo": f"{_EXACT}partition=",
    "persistent_workers": _THREADS,
    "pin_memory": "loader.torch(pin_memory=True)",
    "predownload": _AHEAD,
    "prefetch_factor": _THREADS,
    "progress_bar": _ALONE,
    "remote": "the location, sl.scan(uri)",
    "replication": "rank=rank // k, world_size=world_size // k",
    "retry": _ALONE,
    "sampling_granularity": f"{_EXACT}granularity=",
    "sampling_method": f'{_EXACT}fixed=True for "fixed"',
    "shuffle_algo": f"{_EXACT}shuffle=",
    "shuffle_block_size": f"{_EXACT}block_size=, or sl.Shuffle(block=...)",
    "shuffle_seed": "seed=",
    "streams": "sl.Mix.of_streams(...)",
    "validate_hash": "leave it out: the strongest hash that the index has is compared",
}
"""Words of MosaicML Streaming -> what says the same here."""


def advice(word: str, /) -> str:
    """What to write in place of another package's word, to end a message with; empty for words that nobody uses."""
    return f" From MosaicML Streaming: {MOSAICML[word]}." if word in MOSAICML else ""


def knows_old_words(cls: T, /) -> T:
    """Let a class refuse keywords of MosaicML Streaming with the word of today.

    Raises:
        TypeError: In a call, a keyword that the class does not take and that is known from there.

    Example:
        >>> @knows_old_words
        ... class Order:
        ...     def __init__(self, *, seed): ...
        >>> Order(shuffle_seed=9176)
        Traceback (most recent call last):
            ...
        TypeError: Order takes no option 'shuffle_seed'. From MosaicML Streaming: seed=.
    """
    construct: Any = vars(cls)["__init__"]
    taken = inspect.signature(construct).parameters.keys()

    @functools.wraps(construct)
    def constructed(self: Any, *args: Any, **options: Any) -> None:
        for word in options:
            if word in MOSAICML and word not in taken:
                raise TypeError(f"{cls.__name__} takes no option {word!r}.{advice(word)}")
        construct(self, *args, **options)

    type.__setattr__(cls, "__init__", constructed)
    return cls
