"""Packages that import torchvision, also beside a torch that their torchvision was not built for."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def imported(name: str) -> Any:
    """The module of that name."""
    try:
        return import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    # The wheel of torchvision that pip finds may be for another build of torch. Then two operators that it describes
    # are not there; nothing here calls them, so they are declared, and importing begins anew.
    import torch

    for module in [one for one in sys.modules if one.partition(".")[0] in {"torchvision", name.partition(".")[0]}]:
        del sys.modules[module]
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return import_module(name)
