"""Columns of encoded images: decoded on threads, the next batch's while one is in use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.media import image
from seqlake.training.frames.decoding import cores

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from seqlake.training.frames.ahead import FrameOptions

_Begun = list["Future[Any] | None"]
"""A batch's pictures on their way; None for a null cell."""


class Pictures:
    """Decodes the images of samples; belongs to one pass.

    Args:
        options: Size, layout and threads.
        sharers: Processes of this machine that decode at the same time.
    """

    def __init__(self, options: FrameOptions, *, sharers: int = 1) -> None:
        self._options = options
        self._threads = options.threads or max(1, cores() // sharers)
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, cells: Sequence[Any], /) -> _Begun:
        """Have the pictures of one column of a batch decoded."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="seqlake-pictures")
        return [None if cell is None else self._pool.submit(self._decoded, cell) for cell in cells]

    def take(self, begun: _Begun, /) -> tuple[Any, dict[int, Exception]]:
        """The pictures of a batch, and what is wrong with those that cannot be decoded, by place.

        Returns:
            With a size, uint8 [B, height, width, 3] with zeros where there is none; else a list of arrays.
        """
        found: list[Any] = []
        failed: dict[int, Exception] = {}
        for place, future in enumerate(begun):
            try:
                found.append(None if future is None else future.result())
            except (ValueError, OSError) as error:  # DecodeError is a ValueError
                failed[place] = error
                found.append(None)
        if self._options.size is None or any(isinstance(one, list) for one in found):
            return found, failed
        height, width = self._options.size
        shape = (3, height, width) if self._options.layout == "TCHW" else (height, width, 3)
        pictures = np.zeros((len(found), *shape), np.uint8)
        for place, one in enumerate(found):
            if one is not None and (one.shape != shape or one.dtype != np.uint8):
                failed[place] = SchemaMismatchError(
                    f"expected a picture of 8 bits, uint8 {list(shape)}, found {one.dtype} {list(one.shape)}.",
                    hint="frames(size=) is for pictures of 8 bits with three colours: leave size out.",
                )
            elif one is not None:
                pictures[place] = one
        return pictures, failed

    def close(self) -> None:
        """End the threads; pictures on their way are forgotten."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _decoded(self, cell: Any) -> Any:
        if isinstance(cell, list):
            return [None if one is None else self._decoded(one) for one in cell]
        made: NDArray[Any] = image.decode(cell, size=self._options.size)
        return made.transpose(2, 0, 1) if self._options.layout == "TCHW" else made
