"""FFmpeg's names of pixels, as columns declare them."""

from __future__ import annotations

RGB = "rgb24"
"""What a column declares to have RGB of 8 bits from any file."""


def plain(pixel_format: str, /) -> str:
    """A name without the order of bytes; full range is no other format.

    Example:
        >>> plain("gray16be"), plain("yuvj420p")
        ('gray16', 'yuv420p')
    """
    name = pixel_format.strip().lower()
    name = name[:-2] if name[-2:] in {"le", "be"} and name[-3:-2].isdigit() else name
    return name.replace("yuvj", "yuv")


def differs(declared: str | None, pixel_format: str, /) -> bool:
    """Whether a file has other pixels than its column declares; `rgb24` asks for a conversion and declares nothing.

    Example:
        >>> differs("gray16le", "gray16be"), differs("gray16le", "gray12le"), differs("rgb24", "gray12le")
        (False, True, False)
    """
    return declared is not None and plain(declared) not in {RGB, plain(pixel_format)}
