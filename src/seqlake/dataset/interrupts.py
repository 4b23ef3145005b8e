"""Ctrl-C: what would swallow it is out of the way before long work begins."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress


def import_pandas_first() -> None:
    """Import pandas, if it is installed, before pyarrow does.

    The first conversion that pyarrow makes in a process imports pandas, and drops every error raised meanwhile: for
    that second a Ctrl-C was taken and forgotten, and the work went on. Imported from here, it ends what it should end.
    """
    if "pandas" not in sys.modules:
        with suppress(Exception):  # one that is not there, or broken, is none of ours: pyarrow does without
            importlib.import_module("pandas")
