"""Memory that a worker of a `DataLoader` fills, lends to the process that reads its batches, and then fills again.

torch makes new shared memory for every tensor that a worker sends. For batches of frames, asking the kernel for empty
pages, touching them for the first time and giving them back costs as much as filling them. Here a worker keeps its
pages. In front of them lies a page of marks: the worker sets one when it sends a tensor, and the process that gets it
takes the mark away when nothing looks at these pages any more. The file has no name: the kernel frees it with the last
process that maps it, however that ends.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from functools import cache
from itertools import count
from math import prod
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import numpy as np

from seqlake.plugins import require

_MARKS = mmap.PAGESIZE  # bytes of marks in front of the values, one for each time that a piece is sent
_SPARE = 4  # pieces that a worker keeps though nobody has them
_LARGE = 1 << 18  # bytes from which this costs less than what torch does


def room(shape: tuple[int, ...], dtype: Any, /) -> Any:
    """An empty tensor; a large one, in a worker of a `DataLoader`, is sent without a copy if it is sent whole.

    Args:
        shape: Its shape.
        dtype: torch's name for its numbers, as `torch.uint8`.

    Raises:
        MemoryError: The system gives no memory that processes share.
    """
    torch = require("torch", extra="torch")
    nbytes = dtype.itemsize * prod(shape)
    if nbytes < _LARGE or not _sends():
        return torch.empty(shape, dtype=dtype)
    if not _lends():
        storage = torch.UntypedStorage._new_shared(nbytes)  # noqa: SLF001 - torch's own collation does so
        return torch.empty(0, dtype=dtype).set_(storage, 0, torch.Size(shape))
    piece, values = _pieces_of(os.getpid()).take(nbytes)
    tensor = torch.from_numpy(values).view(dtype).view(shape).as_subclass(_lent())
    tensor.piece = piece
    return tensor


def sendable(tensor: Any, /) -> Any:
    """The tensor, or where it is large and to be sent, a copy in such memory: torch would make one, too.

    Args:
        tensor: Any tensor.

    Raises:
        MemoryError: The system gives no memory that processes share.
    """
    if tensor.nbytes < _LARGE or not _sends() or not _lends():
        return tensor
    copied = room(tuple(tensor.shape), tensor.dtype)
    copied.copy_(tensor)
    return copied


def _sends() -> bool:
    """Whether this is a worker of a `DataLoader`."""
    return require("torch.utils.data", extra="torch").get_worker_info() is not None


def _lends() -> bool:
    """Whether files without a name can be had, and are to be sent."""
    strategy = require("torch.multiprocessing", extra="torch").get_sharing_strategy
    return hasattr(os, "memfd_create") and strategy() == "file_descriptor"


# ---- the worker
class _Piece:
    """Pages that are lent again and again.

    Attributes:
        nbytes: How many bytes of values they hold.
        file: Where they are.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.file = os.memfd_create("seqlake-batch")
        weakref.finalize(self, os.close, self.file).atexit = False
        try:  # memory that is not there is an error here, and a signal later
            os.posix_fallocate(self.file, 0, _MARKS + nbytes)
        except OSError as error:
            raise MemoryError(
                f"A tensor of {nbytes:,} bytes is to be sent to another process, and the system gives no memory for it "
                f"({error.strerror}). Use fewer workers, a lower prefetch_factor or smaller batches."
            ) from error
        self._pages = mmap.mmap(self.file, _MARKS + nbytes)
        self._used: weakref.ref[Any] | None = None
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Any:
        """[nbytes] its values; that the array lives says that this process still looks at them."""
        values = np.frombuffer(self._pages, np.uint8, nbytes, _MARKS)
        self._used = weakref.ref(values)
        return values

    def mark(self) -> int | None:
        """Say that it is sent once more; which mark says so, or None where none is left."""
        with self._lock:
            place = self._pages.find(b"\0", 0, _MARKS)
            if place < 0:
                return None
            self._pages[place] = 1
            return place

    def is_free(self) -> bool:
        """Whether nobody has it. What is sent lives until its mark is set, so marks are looked at last."""
        return (self._used is None or self._used() is None) and self._pages.find(b"\1", 0, _MARKS) < 0


class _Pieces:
    """All pieces of a process, the one that was used last at the end."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> tuple[_Piece, Any]:
        """A piece that nobody has, and its first `nbytes` bytes."""
        with self._lock:
            free = [piece for piece in self._pieces if piece.is_free()]
            fitting = [piece for piece in free if nbytes <= piece.nbytes <= 2 * nbytes]
            piece = min(fitting, key=lambda piece: piece.nbytes) if fitting else _Piece(nbytes)
            left = {piece, *[one for one in free if one is not piece][:-_SPARE]}
            self._pieces = [*(one for one in self._pieces if one not in left), piece]
            return piece, piece.take(nbytes)


@cache
def _pieces_of(process: int) -> _Pieces:
    """Those of a process: a forked one must not fill what its parent lends."""
    del process
    return _Pieces()


@cache
def _lent() -> Any:
    """The kind of tensor that is lent when it is sent. What is made of it, a view too, is an ordinary one."""
    torch = require("torch", extra="torch")

    class Lent(torch.Tensor):  # type: ignore[misc, name-defined]
        """A tensor over a whole piece."""

        __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001 - as torch's own Parameter does

        def __reduce_ex__(self, protocol: Any) -> Any:
            return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)

        def __deepcopy__(self, memo: Any) -> Any:
            return self.as_subclass(torch.Tensor).__deepcopy__(memo)

    ForkingPickler.register(Lent, _sent)
    return Lent


def _sent(tensor: Any) -> tuple[Any, ...]:
    torch = require("torch", extra="torch")
    mark = tensor.piece.mark()
    if mark is None:
        reduced: tuple[Any, ...] = torch.multiprocessing.reductions.reduce_tensor(tensor.clone())
        return reduced
    return _received, (DupFd(tensor.piece.file), mark, tuple(tensor.shape), tensor.dtype)


# ---- the process that reads batches
_loans: dict[int, weakref.finalize[..., Any]] = {}
_numbers = count()


def _received(file: Any, mark: int, shape: tuple[int, ...], dtype: Any) -> Any:
    torch = require("torch", extra="torch")
    _prepare_forks()
    nbytes = dtype.itemsize * prod(shape)
    number = file.detach()
    try:
        pages = mmap.mmap(number, _MARKS + nbytes)
    finally:
        os.close(number)
    values = np.frombuffer(pages, np.uint8, nbytes, _MARKS)
    loan = next(_numbers)
    _loans[loan] = weakref.finalize(values, _give_back, loan, pages, mark, os.getpid())
    _loans[loan].atexit = False
    return torch.from_numpy(values).view(dtype).view(shape)


def _give_back(loan: int, pages: mmap.mmap, mark: int, process: int) -> None:
    _loans.pop(loan, None)
    if os.getpid() == process:
        pages[mark] = 0


@cache
def _prepare_forks() -> None:
    os.register_at_fork(before=_keep)


def _keep() -> None:
    """A forked process may look at the same pages for as long as it likes: they are not given back."""
    for loan in list(_loans):  # other threads may give some back meanwhile
        returned = _loans.pop(loan, None)
        if returned is not None:
            returned.detach()
