"""Writes separated values, byte for byte as the official writers do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seqlake.formats._streaming.cells import CellError
from seqlake.formats._streaming.creating import Settings
from seqlake.formats._streaming.packing import offsets
from seqlake.formats._streaming.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.formats._streaming.encodings import Encoding
    from seqlake.formats._streaming.index import Config


class Packer:
    """See `seqlake.formats._streaming.packing.Packer`.

    Args:
        config: Columns and settings; sorted afterwards.
        _own: Not used: values are texts, integers and floats.

    Raises:
        ValueError: Another encoding, or a name that holds the separator or the newline.
    """

    base = 0
    each = 0

    def __init__(self, config: Config, _own: Mapping[str, Encoding], /) -> None:
        columns = tuple(sorted(config.columns))
        self._forbidden = (config.newline, config.separator)
        self._plain = Plain(columns)
        for name, _ in columns:
            if any(mark in name for mark in self._forbidden):
                raise ValueError(f"The name {name!r} holds the separator or the newline.")
        self.config = replace(config, columns=columns)

    def sample(self, sample: Mapping[str, Any], /) -> bytes:
        """See `Packer`."""
        values, (newline, separator) = [], self._forbidden
        for name, value in self._plain.values(sample):
            text = str(value)
            if newline in text or separator in text:
                raise CellError(f"column {name!r}: {text[:80]!r} holds the separator or the newline; nothing is quoted")
            values.append(text)
        line = separator.join(values) + newline
        # Marks of several letters can also arise where two values meet.
        if line.count(separator) != len(values) - 1 or line.count(newline) != 1:
            raise CellError(f"the values make another separator or newline together: {line[:80]!r}")
        try:
            return line.encode()
        except UnicodeEncodeError as error:
            raise CellError(f"a value is no text that UTF-8 holds ({error})") from error

    def files(self, samples: Sequence[bytes], /) -> tuple[bytes, bytes]:
        """See `Packer`."""
        config = self.config
        header = (config.separator.join(config.names) + config.newline).encode()
        return b"".join([header, *samples]), offsets([len(one) for one in samples], len(header)) + config.header()


def packer(columns: Mapping[str, str], settings: Mapping[str, Any], /) -> Packer:
    """The packer of some columns; a comma makes `csv`, a tab `tsv`, another separator `xsv`.

    Raises:
        ValueError: A setting that makes no sense.
    """
    chosen = Settings.of("xsv", settings, separator=",", newline="\n")
    if not chosen.separator or not chosen.newline:
        raise ValueError("separator and newline are not empty.")
    return Packer(chosen.config({",": "csv", "\t": "tsv"}.get(chosen.separator, "xsv"), columns), {})
