"""Writes MDS: samples and shards, byte for byte as the official writer does."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seqlake.formats._streaming.cells import CellError, absent
from seqlake.formats._streaming.packing import offsets
from seqlake.formats.mds.encodings import PICKLE, PICKLED, encoding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from seqlake.formats._streaming.encodings import Encoding
    from seqlake.formats._streaming.index import Config


_REFUSALS = (CellError, KeyError, ValueError, TypeError, OverflowError, AttributeError, struct.error)


class Packer:
    """See `seqlake.formats._streaming.packing.Packer`.

    Args:
        config: Columns and settings; sorted and with sizes afterwards.
        own: The user's encodings by name.

    Raises:
        InvalidMetadataError: An encoding that is not known.
        ValueError: One that cannot be written.
    """

    each = 4

    def __init__(self, config: Config, own: Mapping[str, Encoding], /) -> None:
        columns = tuple(sorted(config.columns))
        kinds = [own.get(name) or (PICKLED if name == PICKLE else encoding(name)) for _, name in columns]
        for (column, name), kind in zip(columns, kinds, strict=True):
            if kind.encode is None:
                raise ValueError(f"Column {column!r}: the encoding {name!r} has no `encode`.")
        self.config = replace(config, columns=columns, sizes=tuple(kind.size for kind in kinds))
        self._header = self.config.header()
        self.base = 8 + len(self._header)
        self._plan: list[tuple[str, Any, int | None]] = [
            (column, kind.encode, kind.size) for (column, _), kind in zip(columns, kinds, strict=True)
        ]
        self._pack = struct.Struct(f"<{sum(kind.size is None for kind in kinds)}I").pack
        self.sample: Callable[[Mapping[str, Any]], bytes] = _unrolled(self._plan, self._pack, self._slowly)

    def _slowly(self, sample: Mapping[str, Any], /) -> bytes:
        """A sample that `sample` could not encode: this says why."""
        heads: list[int] = []
        parts: list[bytes] = [b""]
        column = ""
        try:
            for column, encode, size in self._plan:
                value = sample[column]
                cell: bytes = value if isinstance(value, bytes) else encode(value)
                if size is None:
                    heads.append(len(cell))
                elif size != len(cell):
                    raise CellError(f"{len(cell)} bytes are given where {size} are stored")
                parts.append(cell)
        except _REFUSALS as error:
            raise CellError(_told(sample, column, error)) from error
        parts[0] = self._pack(*heads)
        return b"".join(parts)

    def files(self, samples: Sequence[bytes], /) -> tuple[bytes, None]:
        """See `Packer`."""
        first = 4 * (len(samples) + 2) + len(self._header)
        return b"".join([offsets([len(one) for one in samples], first), self._header, *samples]), None


def _unrolled(
    plan: Sequence[tuple[str, Any, int | None]],
    pack: Callable[..., bytes],
    slowly: Callable[[Mapping[str, Any]], bytes],
) -> Callable[[Mapping[str, Any]], bytes]:
    """The loop over columns written out, as `dataclasses` writes out methods: a sample is a microsecond of Python.

    Nothing of a column's name becomes source: names, encoders and sizes are the function's globals.
    """
    known: dict[str, Any] = {"pack": pack, "join": b"".join, "slowly": slowly, "REFUSALS": _REFUSALS}
    lines = ["def sample(sample, /):", " try:"]
    for number, (column, encode, size) in enumerate(plan):
        known |= {f"name{number}": column, f"encode{number}": encode}
        cell = f"cell{number}"
        lines += [f"  {cell} = sample[name{number}]", f"  if not isinstance({cell}, bytes):"]
        lines += [f"   {cell} = encode{number}({cell})"]
        if size is not None:
            lines += [f"  if len({cell}) != {size}:", "   return slowly(sample)"]
    lengths = ", ".join(f"len(cell{number})" for number, (_, _, size) in enumerate(plan) if size is None)
    cells = ", ".join(f"cell{number}" for number in range(len(plan)))
    lines += [f"  return join((pack({lengths}), {cells}))", " except REFUSALS:", "  return slowly(sample)"]
    exec("\n".join(lines), known)  # noqa: S102 - made of numbers alone, see above
    made: Callable[[Mapping[str, Any]], bytes] = known["sample"]
    return made


def _told(sample: Mapping[str, Any], column: str, error: Exception) -> str:
    if column not in sample:
        return absent(column, sample)
    return f"column {column!r}: {error}"
