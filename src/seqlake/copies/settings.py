"""What a set of training copies is, and where it lies."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from seqlake.errors import MissingCopyError

if TYPE_CHECKING:
    from collections.abc import Mapping

Fit = Literal["stretch", "letterbox", "crop"]
Codec = Literal["h264", "mjpeg", "ffv1", "raw"]
FITS: tuple[Fit, ...] = get_args(Fit)
CODECS: tuple[Codec, ...] = get_args(Codec)
SUFFIXES: Mapping[str, str] = {"h264": ".mp4", "ffv1": ".mp4", "mjpeg": ".mjpeg", "raw": ".npy"}
FORMAT = "seqlake training copies 2"
SETTINGS = "set.json"
LARGEST = (1 << 14) - 1
"""Pixels of a side."""

_SLOWEST = 1 << 31  # of so many frames one is kept
_SLUG = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings:
    """A set of copies: all videos of a column at one size.

    Attributes:
        column: The column.
        height: Of the pictures.
        width: Likewise.
        fit: `stretch` scales to the size, `letterbox` keeps the shape and fills with black, `crop` keeps it and cuts
            off what is too much on both sides.
        every: Of how many steps one is kept.
        codec: How the pictures are stored.
    """

    column: str
    height: int
    width: int
    fit: Fit = "stretch"
    every: int = 1
    codec: Codec = "h264"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        return self.height, self.width

    @property
    def is_flat(self) -> bool:
        """Whether the pixels lie as they are."""
        return self.codec == "raw"

    @property
    def folder(self) -> str:
        """The name of its folder: one set for each column and size."""
        return folder_of(self.column, self.size)

    def describe(self, *, column: bool = True) -> str:
        """`cam 224x224, stretch, h264`, height first."""
        name = f"{self.column} " if column else ""
        steps = "" if self.every == 1 else f", one of {self.every} steps"
        return f"{name}{self.height}x{self.width}, {self.fit}, {self.codec}{steps}"

    def document(self) -> bytes:
        """As its file holds it."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True).encode()

    @classmethod
    def parse(cls, data: bytes, /, *, where: str) -> CopySettings:
        """From its file, `<folder>/set.json`.

        Raises:
            MissingCopyError: It is no such file, or that of another folder.
        """
        try:
            settings = cls._checked(where.split("/")[-2], **json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise MissingCopyError(
                f"{where} does not describe training copies of this release: {error}.",
                path=where,
                hint="Drop them and make them again: seqlake prepare --drop.",
            ) from error
        return settings

    @classmethod
    def _checked(cls, folder: str, /, *, format: str, **fields: Any) -> CopySettings:  # noqa: A002 - as the file has it
        settings = cls(**fields)
        plain = all(type(side) is int and 0 < side <= LARGEST for side in settings.size)
        plain = plain and type(settings.every) is int and 0 < settings.every <= _SLOWEST
        known = settings.fit in FITS and settings.codec in CODECS and isinstance(settings.column, str)
        if format != FORMAT or not plain or not known:
            raise ValueError(f"expected {FORMAT!r} with values that can be, found {format!r}")
        if settings.folder != folder:
            raise ValueError(f"it is that of {settings.folder}")
        return settings


def folder_of(column: str, size: tuple[int, int], /) -> str:
    """The folder of a set, by its column and size.

    Example:
        >>> folder_of("cam", (224, 320))
        'cam-224x320-707a3c64'
    """
    slug = _SLUG.sub("-", column)[:40]
    return f"{slug}-{size[0]}x{size[1]}-{hashlib.sha256(column.encode()).hexdigest()[:8]}"
