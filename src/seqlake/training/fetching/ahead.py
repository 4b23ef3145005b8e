"""Fetches shards ahead of their use: the order is known, so nothing is guessed."""

from __future__ import annotations

import errno
import threading
from collections import deque
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as WaitTimeoutError
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Self

from seqlake.training.fetching.transfers import Transfers, end_with_program, passes
from seqlake.training.shard_cache import NoRoomError, Original
from seqlake.training.shard_cache.folder import MOST_NEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import pyarrow as pa

    from seqlake.protocols import Shard
    from seqlake.spec.schema import Schema
    from seqlake.training.shard_cache import Copies, LocalCopy
    from seqlake.training.shard_cache.sizes import Size, StepsOf

_LOOK = 0.5  # seconds between two looks at whether a shard gets on
_WRITERS = 4  # shards written anew at a time: each has a batch of rows in memory


@dataclass(slots=True, kw_only=True)
class FetchCounts:
    """What became of the shards that were asked for.

    Attributes:
        hits: Shards that were there, or came in time.
        misses: Shards that were made while the consumer waited.
        waited: Seconds that the consumer waited.
    """

    hits: int = 0
    misses: int = 0
    waited: float = 0.0


class Fetcher:
    """Local copies of the shards of one dataset, for one consumer; the next ones are made while it works.

    It belongs to one process. Nothing runs and nothing is made before the first `schedule` or `take`.

    Args:
        shards: The dataset's shards.
        schema: The columns wanted, with the types that the shards show.
        copies: Where local copies lie.
        transfers: What reads remote files; it is closed with the fetcher.
        steps: Shard number -> columns of steps that are decoded where it is kept in memory; none by default.
        ahead: Shards that are made before they are asked for, at most.

    Attributes:
        fetched: Hits, misses and waiting so far.
        transfers: What reads remote files; `transfers.traffic` counts requests and bytes.

    Example:
        ```python
        copies = InFolder(ShardCache("/nvme/cache", limit=200 * 10**9))
        with Fetcher(shards, schema.select(columns), copies=copies) as fetcher:
            fetcher.schedule([3, 0, 2, 1])       # in order of first use, again for each later visit
            with fetcher.take(3) as shard:       # a local shard with the same rows
                flat = shard.open().flat("action")
        ```
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        schema: Schema,
        /,
        *,
        copies: Copies,
        transfers: Transfers | None = None,
        steps: Callable[[int], Mapping[str, StepsOf]] | None = None,
        ahead: int = 32,
    ) -> None:
        self.fetched: FetchCounts = FetchCounts()
        self._shards = shards
        self._schema = schema
        self._copies = copies
        self.transfers: Transfers = Transfers() if transfers is None else transfers
        self._steps = steps
        self._ahead = ahead
        self._lock = threading.Lock()
        self._writing = threading.BoundedSemaphore(_WRITERS)
        self._originals: dict[int, Original] = {}
        self._upcoming: deque[int] = deque()
        self._making: dict[int, Future[None]] = {}
        self._there: set[int] = set()  # made ahead and not taken yet
        self._full = False  # nothing ahead fits until the next shard is taken
        self._makers: ThreadPoolExecutor | None = None
        self._decoder: ThreadPoolExecutor | None = None

    def nbytes(self, number: int, /) -> int:
        """Of a shard, as it lies in its store."""
        return self._shards[number].nbytes

    def size(self, number: int, steps: Mapping[str, int], /, *, look: bool) -> Size:
        """What a copy of a shard takes, known before it is made; see `Original.size_in_folder`."""
        return self._copies.size(self._original(number), steps, look=look)

    def join(self, order: str, rank: int, /) -> set[int]:
        """Say which rank of an order this is; all ranks that share the room for copies."""
        return self._copies.join(order, rank)

    def schedule(self, order: Iterable[int], /) -> None:
        """Say in which order shards will be taken from now on.

        Args:
            order: Shard numbers; a shard that is taken, released and taken again stands there twice.
        """
        self.transfers.check()
        with self._lock:
            self._upcoming = deque(order)
        self._tell()
        self._begin()

    def take(self, number: int, /) -> LocalCopy:
        """A local copy of a shard, which stays until it is released; waits while it is made.

        Raises:
            OSError: It cannot be fetched; names the file and the cause.
            CorruptFileError: Its bytes do not match their checksums.
            CacheTooSmallError: It does not fit beside the shards that are in use; says the least limit that works.
            TimeoutError: Nothing came for too long; says what was waited for.
            ForkedProcessError: In a forked child.
        """
        self.transfers.check()
        original, began = self._original(number), monotonic()
        with self._lock:
            if number in self._upcoming:
                self._upcoming.remove(number)
        try:
            local = self._copies.find(original)
            while local is None and self._await(number):
                local = self._copies.find(original)
            self.fetched.hits += local is not None
            if local is None:
                self.fetched.misses += 1
                local = self._copies.make(original)
                assert local is not None
        except Exception as error:
            if passes(error) and not isinstance(error, TimeoutError):
                raise OSError(errno.EIO, f"{original.name} could not be fetched: {error}") from error
            error.add_note(f"while {original.name} was fetched")
            raise
        self.fetched.waited += monotonic() - began
        with self._lock:
            self._there.discard(number)
            self._full = False
        try:
            self._tell()
            self._begin()
        except BaseException:
            local.release()
            raise
        return local

    def soonest(self, numbers: Collection[int], /) -> int:
        """The shard, of some, to take first: one that is there, else the first to come; waits for it.

        Args:
            numbers: At least one. Where none of them is on its way, it is the first.

        Raises:
            ForkedProcessError: In a forked child.
        """
        with self._lock:
            there = [number for number in self._there if number in numbers]
            coming = {future: number for number, future in self._making.items() if number in numbers}
        if there or not coming:
            return next(iter(there or numbers))
        self.transfers.check()
        began = monotonic()
        done, _ = wait(coming, timeout=self.transfers.patience, return_when=FIRST_COMPLETED)
        self.fetched.waited += monotonic() - began
        return coming[done.pop()] if done else next(iter(numbers))

    def close(self) -> None:
        """End all threads and whatever they were making; shards that were made stay in the cache."""
        makers, self._makers = self._makers, None
        with self._lock:
            self._upcoming.clear()
        self.transfers.close()
        for threads in (self._decoder, makers):
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- ahead

    def _decode(self, read: Callable[[], pa.Table]) -> pa.Table:
        """Decode on the one thread that does so: each would keep memory for its next shard."""
        with self._lock:
            if self._decoder is None:
                self._decoder = ThreadPoolExecutor(1, thread_name_prefix="seqlake-decode")
                end_with_program(self.transfers)
            decoded = self._decoder.submit(read)
        return decoded.result()

    def _original(self, number: int) -> Original:
        with self._lock:
            if number not in self._originals:
                self._originals[number] = Original(
                    self._shards[number],
                    self._schema,
                    self.transfers,
                    writing=self._writing,
                    decode=self._decode,
                    steps=None if self._steps is None else self._steps(number),
                )
            return self._originals[number]

    def _tell(self) -> None:
        """Tell the cache what is needed next, the soonest first."""
        with self._lock:
            soon = list(dict.fromkeys(self._upcoming))[:MOST_NEXT]
        self._copies.expect([self._original(number).key for number in soon])

    def _begin(self) -> None:
        """Begin to make the next shards that are not there."""
        with self._lock:
            soon = list(dict.fromkeys(self._upcoming))[: self._ahead]
        for number in soon:
            original = self._original(number)
            with self._lock:
                if self._full or number in self._making or number in self._there:
                    continue
                if self._makers is None:
                    # While some write and check what came, the others' requests are under way.
                    self._makers = ThreadPoolExecutor(self.transfers.threads + 4, thread_name_prefix="seqlake-ahead")
                    end_with_program(self.transfers)
                self._making[number] = self._makers.submit(self._make, number, original)

    def _make(self, number: int, original: Original) -> None:
        try:
            self.transfers.check()
            if not self._full:
                self._copies.make(original, ahead=True)
        except NoRoomError:
            self._full = True
        if self._full:
            with self._lock:
                self._making.pop(number, None)
        else:
            with self._lock:
                self._making.pop(number, None)
                self._there.add(number)

    def _refuse_to_hang(self, original: Original, seconds: float) -> None:
        if seconds > self.transfers.patience:
            raise TimeoutError(
                f"{original.name}: it is being fetched ahead and has not got on for "
                f"{self.transfers.patience:g} s. The server hangs, or the line is too slow."
            ) from None

    def _made_now(self, number: int) -> Future[None] | None:
        """The making of a shard that has begun; one that has not is taken back."""
        with self._lock:
            future = self._making.get(number)
            if future is not None and future.cancel():
                self._making.pop(number)
                return None
            return future

    def _await(self, number: int) -> bool:
        """Wait for a shard that is being made ahead; False where none is."""
        future = self._made_now(number)
        if future is None:
            return False
        original, seen, since = self._original(number), -1, monotonic()
        while True:
            try:
                future.result(timeout=_LOOK)
            except WaitTimeoutError as error:
                if future.done():
                    if future.exception() is error:
                        raise  # the maker's own
                    continue  # it came at the last moment
                if original.progress != seen:
                    seen, since = original.progress, monotonic()
                self._refuse_to_hang(original, monotonic() - since)
            except CancelledError:
                return False
            else:
                return True
            finally:
                if future.done():
                    with self._lock:
                        self._making.pop(number, None)
