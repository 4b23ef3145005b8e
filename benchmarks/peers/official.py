"""MosaicML's package in its own environment, also beside a torch that its torchvision was not built for.

from official import streaming
"""

from __future__ import annotations

from _importing import imported

streaming = imported("streaming")

__all__ = ["streaming"]
