"""Writes JSON lines, byte for byte as the official writer does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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
        config: Columns and settings.
        _own: Not used: values are texts, integers and floats.

    Raises:
        ValueError: Another encoding.
    """

    base = 0
    each = 0

    def __init__(self, config: Config, _own: Mapping[str, Encoding], /) -> None:
        self.config = config
        self._plain = Plain(config.columns)

    def sample(self, sample: Mapping[str, Any], /) -> bytes:
        """See `Packer`."""
        return (json.dumps(dict(self._plain.values(sample)), sort_keys=True) + self.config.newline).encode()

    def files(self, samples: Sequence[bytes], /) -> tuple[bytes, bytes]:
        """See `Packer`."""
        return b"".join(samples), offsets([len(one) for one in samples], 0) + self.config.header()


def packer(columns: Mapping[str, str], settings: Mapping[str, Any], /) -> Packer:
    """The packer of some columns.

    Raises:
        ValueError: A setting that makes no sense.
    """
    chosen = Settings.of("jsonl", settings, newline="\n")
    if not chosen.newline:
        raise ValueError("newline is not empty.")
    return Packer(chosen.config("json", columns), {})
