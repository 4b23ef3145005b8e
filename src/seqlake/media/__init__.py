"""Bytes to arrays: each plug decodes some column types."""

from __future__ import annotations

from seqlake.media._frames import Frames, Held
from seqlake.media._opening import index, open, open_steps, opens  # noqa: A004 - the protocol's name

__all__ = ["Frames", "Held", "index", "open", "open_steps", "opens"]
