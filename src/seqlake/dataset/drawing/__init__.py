"""Pictures of sequences without a plotting library: curves as SVG and PNG, contact sheets as PNG."""

from __future__ import annotations

from seqlake.dataset.drawing.canvas import Canvas, save
from seqlake.dataset.drawing.plots import COLORS, Panel, png, svg
from seqlake.dataset.drawing.sheet import contact_sheet, sheet
from seqlake.dataset.drawing.strips import Strip

__all__ = ["COLORS", "Canvas", "Panel", "Strip", "contact_sheet", "png", "save", "sheet", "svg"]
