"""MosaicML's package in its own environment, also beside a torch that its torchvision was not built for.

from official import streaming
"""

from __future__ import annotations

import sys

try:
    import streaming
except RuntimeError as error:
    if "torchvision::" not in str(error):
        raise
    # The wheel of torchvision that pip finds may be for another build of torch. Then two operators that it describes
    # are not there; nothing here calls them, so they are declared, and importing begins anew.
    import torch

    for name in [name for name in sys.modules if name.partition(".")[0] in {"torchvision", "streaming"}]:
        del sys.modules[name]
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import streaming

__all__ = ["streaming"]
