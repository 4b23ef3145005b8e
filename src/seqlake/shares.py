"""Work whose tasks leave receipts in a folder, so that it is gone on with, or divided among processes.

A run that was interrupted goes on from its receipts. Processes that know nothing of each other, as those of Slurm
arrays and Kubernetes jobs, each do a share of the tasks, and one of them finishes.

```text
<folder>/run.json               what is done, and by how many shares, to refuse a folder of another run
<folder>/<name>.agreed          what all processes of the run have in common, as the transaction they write to
<folder>/pass-0/tasks.agreed    how many tasks there are
<folder>/pass-0/0000/0000012    the receipt of a task; it is there only when the task is finished
<folder>/finished.json          the run is over
```

Whatever an executor runs can be run so: `Resumable`, `Share` and `Finish` are executors, given as `on=`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import secrets
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from seqlake.bars import progress_bar
from seqlake.errors import SeqlakeError
from seqlake.executors import Result, Task, executor_of, expect, kept, numbered
from seqlake.files.locations import is_local, local_path
from seqlake.packing import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from seqlake.executors import Executor

T = TypeVar("T")
E = TypeVar("E", bound="Executor | None")

_FEW = 20  # shares that a message names
_PER_FOLDER = 1000  # receipts
_ASK_SECONDS = 1.0  # between two looks for the receipts of others
_ANEW = "Give another folder, or delete this one to begin anew."
_FINISHED, _RUN = "finished.json", "run.json"


class Ended(Exception):  # noqa: N818 - nothing went wrong
    """A share has done its tasks: what needs those of all others is left to `Finish`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """What the three have in common.

    Attributes:
        folder: Where receipts lie; all processes must reach it.
        on: What runs the tasks: `"processes"`, `"ray"` or an `Executor`.
    """

    folder: str | os.PathLike[str]
    on: str | Executor = "processes"

    def begin(self, identity: Mapping[str, Any], /) -> RecordedRun:
        """The run that this folder is for.

        Args:
            identity: What must be equal in all processes, as plain JSON.

        Raises:
            SeqlakeError: The folder belongs to another run.
            Ended: The run is over.
        """
        return RecordedRun(self, identity)

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        /,
        *,
        done: Callable[[Task, Result], None],
        tick: Callable[[], None],
    ) -> None:
        """See `Executor`: tasks that nobody named are known by their function and number."""
        run = self.begin({"function": getattr(function, "__name__", type(function).__name__), "tasks": len(tasks)})
        run.run(function, tasks, done=done, tick=tick)
        run.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumable(_Folder):
    """An executor that keeps what is finished, so that the same call after an interruption does only the rest.

    Example:
        ```python
        sl.trim(ds, "data/trimmed", start=40, on=Resumable(folder="work"))
        ```
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(_Folder):
    """An executor that runs one share of the tasks, and ends the block that it opens: `Finish` does the rest.

    The same share may be run again: tasks that have receipts are passed by. Where two processes run one share at a
    time, the second waits for the first (on file systems that lock; elsewhere both work, and the later receipt counts).

    Attributes:
        number: Which share, from 0.
        of: How many there are.
        wait: Seconds to wait for the other shares where more work follows that needs what they gave, as the quantiles
            of `statistics` do; without, run all shares again for each pass.

    Example:
        ```python
        with Share(folder="/scratch/run", number=3, of=64) as share:
            sl.convert("bridge_rlds/1.0.0", "/data/bridge", on=share)
        ```
    """

    number: int
    of: int
    wait: float = 0

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise ValueError(f"Expected a share from 0 to {self.of - 1} of {self.of}, found {self.number}.")

    def __str__(self) -> str:
        return f"Share {self.number} of {self.of}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        return isinstance(error, Ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(_Folder):
    """An executor that hands over what the shares have left, and runs nothing; then the call commits.

    Raises `SeqlakeError` while receipts are missing, and says of which shares.

    Example:
        ```python
        ds = sl.convert("bridge_rlds/1.0.0", "/data/bridge", on=Finish(folder="/scratch/run"))
        ```
    """


class RecordedRun:
    """One run and its folder; an `Executor`, for one call of one verb.

    Args:
        how: Which of the three.
        identity: What must be equal in all processes.

    Attributes:
        executor: What runs the tasks.
    """

    def __init__(self, how: _Folder, identity: Mapping[str, Any], /) -> None:
        self._how = how
        if not is_local(os.fspath(how.folder)):
            raise SeqlakeError(
                f"Receipts lie in a folder that all machines reach, found {os.fspath(how.folder)!r}.",
                path=os.fspath(how.folder),
                hint="Datasets may lie in buckets; receipts need a file system: NFS, Lustre, a mounted volume.",
            )
        self.folder: Path = local_path(os.fspath(how.folder))
        self._passes = 0
        self._mark = ""
        self._divided = True
        self.goes_on = False
        self._of = how.of if isinstance(how, Share) else 1
        self.executor: Executor = executor_of(how.on)
        if (self.folder / _FINISHED).exists():
            raise Ended(
                f"The run of {self.folder} is over: nothing is left to do. Give another folder for another run."
            )
        shares = {"shares": self._of} if isinstance(how, Share) else {}
        # Another version may cut the work otherwise, and the same number would be another task.
        release = importlib.import_module("seqlake").__version__
        plain = json.loads(json.dumps({**identity, "release": release}))
        if isinstance(how, Finish):
            held = _load(self.folder / _RUN)
            if held is None:
                raise SeqlakeError(
                    f"No share has left anything in {self.folder}.",
                    path=str(self.folder),
                    hint="Run the shares first, with the same folder: --task 0/N, --task 1/N, ...",
                )
            shares = {"shares": held["shares"]} if "shares" in held else {}
            self._of = shares.get("shares", 1)
        self._divided = "shares" in shares
        self.folder.mkdir(parents=True, exist_ok=True)
        _first(self.folder / _RUN, json.dumps(plain | shares).encode())
        self._expect(plain | shares)
        self._mark = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def _expect(self, mine: Mapping[str, Any]) -> None:
        held = _load(self.folder / _RUN) or {}
        if held != mine:
            differs = sorted(key for key in {*held, *mine} if held.get(key) != mine.get(key))
            raise SeqlakeError(
                f"The folder {self.folder} belongs to another run: {', '.join(differs)} differ.",
                path=str(self.folder),
                hint="Give another folder, or delete this one to begin anew; all shares need the same arguments, the "
                "same version of seqlake, and a dataset that nobody changes meanwhile.",
            )

    def expect(self, count: int, /) -> None:
        """So many tasks will come, about: workers start meanwhile, where there are."""
        if not isinstance(self._how, Finish):
            expect(self.executor, count // self._of)

    def agree(
        self,
        name: str,
        make: Callable[[], T],
        /,
        *,
        check: Callable[[], object] = lambda: None,
        mend: Callable[[], object] = lambda: None,
        undo: Callable[[T], object] = lambda _: None,
    ) -> T:
        """A value that all processes of the run have in common: the first one to come makes it.

        Args:
            name: What it is called here.
            make: Called by the first; of what `packing.pack` takes.
            check: Called before it: raises where it may not be made.
            mend: Called before both where a process was killed within `make`; never while one may be in there still.
            undo: Called with what was made, where another process was first after all.

        Raises:
            SeqlakeError: Nobody has made it, and this process is only to finish.
        """
        path = self.folder / f"{name}.agreed"
        if (held := _read(path)) is not None:
            return _agreed(held, path)  # type: ignore[no-any-return]
        if isinstance(self._how, Finish):
            raise self._missing(range(self._of), "all their tasks")
        with self._locked(f"{name}.lock") as locked:
            if (held := _read(path)) is not None:
                return _agreed(held, path)  # type: ignore[no-any-return]
            begun = self.folder / f"{name}.begun"
            if locked and begun.exists():
                mend()
            check()
            _first(begun, b"")
            try:
                value = make()
            except BaseException:
                begun.unlink(missing_ok=True)  # nothing is left of it
                raise
            if not _first(path, pack((value,))):
                undo(value)
            return _agreed(path.read_bytes(), path)  # type: ignore[no-any-return]

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        /,
        *,
        done: Callable[[Task, Result], None],
        tick: Callable[[], None],
    ) -> None:
        """See `Executor`.

        Raises:
            Ended: This is a share, and has done its tasks.
            SeqlakeError: Receipts are missing, and this process is only to finish; or they are of other tasks.
        """
        for number, result in self._pass(function, tasks, done=done, tick=tick):
            done(tasks[number], result)
            tick()

    def kept(self, function: Callable[[Task], Result], tasks: Sequence[Task], /) -> Iterator[Result]:
        """The results in the order of the tasks, one at a time in memory.

        Args:
            function: As for `run`.
            tasks: As for `run`.
        """
        for _ in self._pass(function, tasks, done=lambda *_: None, tick=lambda: None, after=True):
            pass
        place = self._place(self._passes - 1)
        for number in range(len(tasks)):
            yield self._receipt(place, number)

    def _pass(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        /,
        *,
        done: Callable[[Task, Result], None],
        tick: Callable[[], None],
        after: bool = False,
    ) -> Iterator[tuple[int, Result]]:
        """Run what is to be run; gives what was finished before, unless it is asked for `after` all."""
        place = self._place(self._passes)
        count = self.agree(f"pass-{self._passes}/tasks", lambda: len(tasks))
        if count != len(tasks):
            raise SeqlakeError(
                f"Pass {self._passes} in {self.folder} is of {count} tasks, found {len(tasks)}.",
                path=str(self.folder),
                hint="All shares need the same arguments and the same release of seqlake.",
            )
        self._passes += 1
        there = _finished(place)
        if not isinstance(self._how, Finish):
            share = self._how.number if isinstance(self._how, Share) else 0
            with self._locked(f"share-{share}.lock"):
                there = _finished(place)
                mine = [n for n in range(share, len(tasks), self._of) if n not in there]

                def keep(task: tuple[int, Task], result: Result) -> None:
                    _keep(place, task[0], (self._mark, task[0], result))
                    if isinstance(self._how, Resumable):
                        done(task[1], result)

                if mine:
                    with _bar(self._how, len(tasks), len(mine)) as step:
                        some = [(n, tasks[n]) for n in mine]
                        self.executor.run(numbered(function), some, done=_both(keep, step), tick=tick)
            if isinstance(self._how, Share):
                self._end(place, len(tasks))
                there = _finished(place)
        elif missing := [n for n in range(len(tasks)) if n not in there]:
            raise self._missing(sorted({n % self._of for n in missing}), f"{len(missing)} of {len(tasks)} tasks")
        if not after:
            for number in sorted(there):
                yield number, self._receipt(place, number)

    def _receipt(self, place: Path, number: int) -> Any:
        path = _path(place, number)
        held = unpack(path.read_bytes(), path=str(path))
        if not isinstance(held, tuple) or held[:2] != (self._mark, number):
            raise SeqlakeError(
                f"{path} is the receipt of another task.",
                path=str(path),
                hint="Delete it: its task is done again.",
            )
        return held[2]

    def _end(self, place: Path, count: int) -> None:
        """A share is over here, unless more passes follow and all others have done theirs of this one."""
        assert isinstance(self._how, Share)
        until = time.monotonic() + self._how.wait
        while self.goes_on:
            if len(_finished(place)) >= count:
                return
            if time.monotonic() >= until:
                break
            time.sleep(_ASK_SECONDS)
        raise Ended(f"{self._how} has done its tasks.")

    def _missing(self, shares: Sequence[int], what: str) -> SeqlakeError:
        names = ", ".join(map(str, shares[:_FEW])) + (f" and {len(shares) - _FEW} more" if len(shares) > _FEW else "")
        number = max(0, self._passes - 1)
        whose = f"; they are of the shares {names} of {self._of}" if self._divided else ""
        return SeqlakeError(
            f"Not finished: {what} of pass {number} have no receipt in {self.folder}{whose}.",
            path=str(self.folder),
            hint=f"Run these shares again (--task {shares[0]}/{self._of}), then finish."
            if self._divided
            else "Run the same again without --finish: it does the rest.",
        )

    def stop(self) -> None:
        """Nothing that only one process may do is done by a share.

        Raises:
            Ended: This is a share.
        """
        if isinstance(self._how, Share):
            raise Ended(f"{self._how} has done its tasks.")

    def close(self) -> None:
        """The run is over: its receipts are removed; of shares it stays on record that they have nothing to do."""
        if isinstance(self._how, Share):
            return
        if isinstance(self._how, Finish):
            _first(self.folder / _FINISHED, b"{}")
        self.forget()

    def forget(self) -> None:
        """Remove what this class wrote; the folder, too, if nothing else is in it."""
        for pattern in ("*.agreed", "*.begun", "*.lock", _RUN):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)
        for path in self.folder.glob("pass-*"):
            shutil.rmtree(path, ignore_errors=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _place(self, number: int) -> Path:
        place = self.folder / f"pass-{number}"
        place.mkdir(parents=True, exist_ok=True)
        return place

    @contextmanager
    def _locked(self, name: str) -> Iterator[bool]:
        """Within the block no other process is in one of this name, where files can be locked: it says whether so."""
        if importlib.util.find_spec("fcntl") is None:
            yield False
            return
        fcntl = importlib.import_module("fcntl")
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield _has_locked(fcntl, fd)
        finally:
            os.close(fd)


@contextmanager
def begun(
    executor: E, verb: str, identity: Mapping[str, object] | None = None, /, *, goes_on: bool = False
) -> Iterator[E]:
    """Within the block an executor that keeps receipts is for one run; after it, they have served.

    Workers stay for all passes of the block, whatever executor it is (`executors.kept`).

    Args:
        executor: Any; one without receipts is only kept.
        verb: What runs.
        identity: What must be equal in all processes: plain values, others by their `repr`; functions are called.
        goes_on: Whether more passes follow a first one, whose tasks need what that gave; then `stop` comes before what
            only one process may do, since the last share to end gets there.

    Example:
        >>> with begun(executor_of("processes", workers=1), "statistics", {"columns": ["action"]}) as executor:
        ...     in_turn(executor, abs, [-1], at_once=1, done=print)
        -1 1
    """
    if executor is None:
        yield executor
        return
    if not isinstance(executor, _Folder):
        with kept(executor) as stays:
            yield stays  # type: ignore[misc]
        return
    given = {name: one() if callable(one) else one for name, one in (identity or {}).items()}
    run = executor.begin({"verb": verb, **{name: _plain(one) for name, one in given.items()}})
    run.goes_on = goes_on
    try:
        with kept(run.executor) as run.executor:
            yield run  # type: ignore[misc]
    except SeqlakeError as error:
        if isinstance(executor, Resumable) and run.folder.is_dir():
            hint = f"Finished tasks are kept in {run.folder}: the same call goes on from there."
            error.hint = f"{error.hint} {hint}" if error.hint else hint
        raise
    run.close()


def in_turn(
    executor: Executor,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    /,
    *,
    at_once: int,
    done: Callable[[Task, Result], None],
) -> None:
    """Hand over results in the order of the tasks, as soon as they are there; too many for memory together.

    Args:
        executor: What runs them.
        function: Picklable.
        tasks: Independent of each other.
        at_once: So many results wait in memory at most; of a run that keeps receipts, one does.
        done: Called in this process with each task and its result, while later ones are worked at.

    Example:
        >>> in_turn(executor_of("processes", workers=1), abs, [-2, 1], at_once=1, done=print)
        -2 2
        1 1
    """
    if isinstance(executor, RecordedRun):
        for task, result in zip(tasks, executor.kept(function, tasks), strict=True):
            done(task, result)
        return
    for start in range(0, len(tasks), at_once):
        turn = _Turn(tasks[start : start + at_once], done)
        executor.run(numbered(function), list(enumerate(turn.tasks)), done=turn.take, tick=lambda: None)


@dataclass(slots=True)
class _Turn(Generic[Task, Result]):
    """Results that wait for those before them."""

    tasks: Sequence[Task]
    done: Callable[[Task, Result], None]
    early: dict[int, Result] = field(default_factory=dict)
    upto: int = 0

    def take(self, task: tuple[int, Task], result: Result, /) -> None:
        """Hand over what can be by now."""
        self.early[task[0]] = result
        while self.upto in self.early:
            self.done(self.tasks[self.upto], self.early.pop(self.upto))
            self.upto += 1


def inner_of(executor: Executor, /) -> Executor:
    """What runs the tasks in the end.

    Example:
        >>> inner_of(Resumable(folder="work", on=executor_of("processes", workers=2)))
        Processes(workers=2)
    """
    return executor_of(executor.on) if isinstance(executor, _Folder) else executor


def subfolder(executor: Executor, name: str, /) -> Executor:
    """The same with receipts in a folder within its own, for a second verb; others as they are.

    Example:
        >>> subfolder(Finish(folder="work"), "outliers").folder
        PosixPath('work/outliers')
    """
    return replace(executor, folder=Path(executor.folder) / name) if isinstance(executor, _Folder) else executor


def _agreed(data: bytes, path: Path) -> Any:
    """The one value of a file of the folder."""
    held = unpack(data, path=str(path))
    if not (isinstance(held, tuple) and len(held) == 1):
        raise SeqlakeError(f"{path} is not what a share leaves.", path=str(path), hint=_ANEW)
    return held[0]


def _plain(value: Any) -> Any:
    """As JSON; text of what is none."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)


def _has_locked(fcntl: Any, fd: int) -> bool:
    """Lock a file; not where the file system cannot: receipts are put in place by rename and link alone there."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _both(keep: Callable[[Any, Any], None], step: Callable[[], object]) -> Callable[[Any, Any], None]:
    def done(task: Any, result: Any) -> None:
        keep(task, result)
        step()

    return done


@contextmanager
def _bar(how: _Folder, count: int, mine: int) -> Iterator[Callable[[], object]]:
    """Shows how far a share is; of others the verb shows it."""
    if not isinstance(how, Share):
        yield lambda: None
        return
    title = f"share {how.number} of {how.of}"
    before = len(range(how.number, count, how.of)) - mine
    with progress_bar()(total=before + mine, initial=before, desc=title, unit=" tasks", disable=None) as bar:
        yield bar.update


def _finished(place: Path) -> set[int]:
    """The numbers of tasks that have a receipt."""
    return {
        int(path.name)
        for folder in place.iterdir()
        if folder.is_dir()
        for path in folder.iterdir()
        if path.name.isdecimal()
    }


def _path(place: Path, number: int) -> Path:
    return place / f"{number // _PER_FOLDER:04d}" / f"{number:07d}"


def _keep(place: Path, number: int, receipt: object) -> None:
    """Keep a receipt, durably; one that is there is replaced."""
    path = _path(place, number)
    path.parent.mkdir(exist_ok=True)
    _written(path, pack(receipt)).replace(path)


def _first(path: Path, data: bytes) -> bool:
    """Put a file where none is; false where another process was first."""
    temporary = _written(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # no links: whoever opens it first writes it
        try:
            with path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _written(path: Path, data: bytes) -> Path:
    """A file beside a path, durable, with a name of its own."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _load(path: Path) -> Any:
    data = _read(path)
    if data is None:
        return None
    try:
        held = json.loads(data)
    except ValueError:
        held = None
    if not isinstance(held, dict) or not isinstance(of := held.get("shares", 1), int) or of < 1:
        raise SeqlakeError(f"{path} is not a file of a folder of receipts.", path=str(path), hint=_ANEW)
    return held
