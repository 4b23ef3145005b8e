"""Training copies of a dataset's videos: planned, made in parallel, gone on with after an interruption, dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, get_args

import numpy as np

from seqlake.abilities import OfALake, OfATable, ability
from seqlake.arguments import bytes_of
from seqlake.copies.choosing import Allowance, choose, measure, megabytes
from seqlake.copies.making import PASSING, CopyMade, CopyMaker, CopyTask
from seqlake.copies.reading import CopyFolder, CopySet
from seqlake.copies.records import Originals
from seqlake.copies.settings import FITS, LARGEST, SETTINGS, Codec, CopySettings, Fit
from seqlake.dataset.progress import counting
from seqlake.errors import (
    DecodeError,
    MissingCopyError,
    MissingFileError,
    ReadOnlyError,
    SchemaMismatchError,
    SeqlakeError,
)
from seqlake.executors import executor_of, expect
from seqlake.files.limits import machine_memory
from seqlake.files.local import LocalStore
from seqlake.files.stores import list_without_links
from seqlake.shares import RecordedRun, begun
from seqlake.spec.alignment import clock_of, own_rate
from seqlake.spec.schema import no_column
from seqlake.versions import names
from seqlake.windows.sources import cells_of, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

    from seqlake.executors import Executor
    from seqlake.protocols import Readable
    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.schema import Column

_HEX = frozenset("0123456789abcdef")
_WORTH = 16  # videos, from which on workers start while it is planned
_TOLD = 5  # damaged files that a printed plan names


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The copies of one column.

    Attributes:
        settings: What they are.
        location: Where they lie.
        files: How many videos the rows name.
        there: How many of them had a copy already.
        written: How many were made now; of a plan, how many would be.
        nbytes: Of the copies that were made now; of a plan, estimated, 0 where nothing was measured.
        originals: Bytes of all originals.
        frames: Of the copies that were made now.
        damaged: File -> why it cannot be decoded; then it has no copy, and training says so.
        why: Lines about the choice of the codec; none where it was given.
    """

    settings: CopySettings
    location: str
    files: int
    there: int
    written: int
    nbytes: int
    originals: int
    frames: int = 0
    damaged: Mapping[str, str] = field(default_factory=dict)
    why: tuple[str, ...] = ()

    def lines(self, *, planned: bool) -> list[str]:
        """What is printed of it."""
        verb, about = ("would make", "about ") if planned else ("made", "")
        much = f", {about}{megabytes(self.nbytes)}" if self.nbytes else ""
        what = f"{verb} {self.written} copies of {self.files} videos{much}, {self.there} were there"
        lines = [f"{self.settings.describe()}: {what}; the originals have {megabytes(self.originals)}"]
        lines += [f"  {line}" for line in self.why]
        lines += [f"  damaged: {name}: {text}" for name, text in list(self.damaged.items())[:_TOLD]]
        more = len(self.damaged) - _TOLD
        return [*lines, f"  and {more} damaged ones more"] if more > 0 else lines


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What `prepare` did, or would do; prints itself.

    Attributes:
        columns: One entry for each column.
        planned: Whether nothing was written.
    """

    columns: tuple[Prepared, ...]
    planned: bool = False

    def __str__(self) -> str:
        return "\n".join(line for one in self.columns for line in one.lines(planned=self.planned))


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The copies of one column that are to be made."""

    group: CopySet
    column: Column
    tasks: Sequence[CopyTask]
    prepared: Prepared


def prepare(
    source: Readable,
    videos: Mapping[str, tuple[int, int]],
    /,
    *,
    fit: Fit = "stretch",
    fps: float | None = None,
    codec: Codec | str = "auto",
    budget: int | str | None = None,
    out: str | PathLike[str] | None = None,
    workers: int | None = None,
    on: str | Executor = "processes",
    dry_run: bool = False,
) -> Preparation:
    """Make training copies of videos: smaller pictures beside the originals, which `Loader.frames(copies=True)` reads.

    Copies lie in `_seqlake/copies/` of the dataset, one file for each video, and no version names them: to drop them
    harms nothing. Videos that have a copy are passed by, so that a run that was killed goes on, and one after a commit
    makes what is new. One run at a time works on a dataset. The workers are processes, so a script has
    `if __name__ == "__main__":` around it.

    Args:
        source: A dataset, or a selection: then of the videos that its rows name.
        videos: Column -> height and width.
        fit: `stretch` scales to the size, `letterbox` keeps the shape and fills with black, `crop` keeps it and cuts
            off what is too much on both sides. Scaling down averages areas.
        fps: Keep fewer frames, counted from each row's first; divides the video's own rate.
        codec: `h264` in the training profile, `mjpeg`, `ffv1` or `raw`; `auto` measures all of them on two videos and
            takes the fastest that fits the budget.
        budget: Bytes that all copies may take, as a number or as in `"50GB"`. By default a quarter of the disk that is
            free, but no more than half of the machine's memory or four times the originals, whichever is more; never
            less than the originals take, and as much as that in a bucket.
        out: A folder for the copies instead; needed where the dataset is not ours to write to.
        workers: Processes; one for each core by default.
        on: `"processes"`, `"ray"` or an `Executor`.
        dry_run: Plan and measure, and write nothing.

    Returns:
        What was made, column by column; `print` it.

    Raises:
        SchemaMismatchError: A column is no video in files of its own, or has no colour pictures of 8 bits.
        SeqlakeError: Copies of that column and size are there with other settings, or exceed a budget that was given.
        ReadOnlyError: The dataset is not ours to write to, and there is no `out`.
        MissingCopyError: What is there cannot be read.
        ValueError: An argument that cannot be meant.

    Example:
        ```python
        print(sl.prepare(ds, {"cam": (224, 224), "wrist": (224, 224)}))
        loader = sl.Loader(ds, window={"cam": [0]}, batch_size=32).frames(size=(224, 224), copies=True)
        ```
    """
    _check(videos, fit, codec)
    limit = None if budget is None else bytes_of(budget, name="budget")
    place = _place(source, out)
    originals = Originals.of(source)

    def planned() -> list[_Plan]:
        plans, left, room = list[_Plan](), limit, _room(place, len(videos))
        for name, size in videos.items():
            plan = _plan(source, place, originals, name, size, fit=fit, fps=fps, codec=codec, budget=left, room=room)
            left = None if left is None else max(0, left - plan.prepared.nbytes)
            plans.append(plan)
        return plans

    if dry_run:
        return Preparation(columns=tuple(plan.prepared for plan in planned()), planned=True)
    identity = {"source": lambda: source.fingerprint, "videos": repr(videos), "options": [fit, fps, codec, limit]}
    with begun(executor_of(on, workers=workers), "prepare", {"out": place.location, **identity}) as run:
        rows = sum(shard.rows for shard in source.shards())
        if rows >= _WORTH and any(place.settings(name, size) is None for name, size in videos.items()):
            expect(run, rows)
        return Preparation(columns=tuple(_run(_agreed(run, planned, source, place, originals), run)))


def drop_copies(
    source: Readable,
    videos: Mapping[str, tuple[int, int]] | None = None,
    /,
    *,
    out: str | PathLike[str] | None = None,
    dry_run: bool = False,
) -> dict[str, int]:
    """Remove training copies; nothing else of the dataset changes.

    Args:
        source: The dataset.
        videos: Column -> height and width, as they were made; all by default.
        out: The folder, where they lie in one of their own.
        dry_run: Only say what would go.

    Returns:
        Path below the dataset, or below `out` -> bytes, of what was removed.

    Raises:
        MissingCopyError: There are no such copies.

    Example:
        ```python
        sl.drop_copies(ds)
        ```
    """
    place = CopyFolder.of(source, out)
    folders = None if videos is None else {place.expect(name, size).folder for name, size in videos.items()}
    store = place.store
    gone = {}
    for path, size in list_without_links(store, place.prefix.rstrip("/")):
        folder, slash, name = path.removeprefix(place.prefix).partition("/")
        if slash and (folders is None or folder in folders) and (place.prefix or _is_ours(name)):
            gone[path] = size
    if not dry_run:  # descriptions first: a set that is half gone is no set
        store.delete(sorted(gone, key=lambda path: not path.endswith(f"/{SETTINGS}")))
    return gone


def _is_ours(name: str) -> bool:
    """Whether a file of a folder that somebody named is a copy, by its name."""
    stem, dot, _ = name.partition(".")
    parts = stem.split("-")
    return name == SETTINGS or (
        bool(dot) and len(parts) <= 2 and all(len(part) == 32 and set(part) <= _HEX for part in parts)
    )


def _check(videos: object, fit: str, codec: str) -> None:
    if not isinstance(videos, Mapping) or not videos:
        raise ValueError(f"prepare: expected columns with sizes, as in {{'cam': (224, 224)}}, found {videos!r}.")
    for name, size in videos.items():
        pair = isinstance(size, (tuple, list)) and len(size) == 2
        if not (pair and all(type(one) is int and 0 < one <= LARGEST for one in size)):
            raise ValueError(f"prepare: expected (height, width) in pixels for {name!r}, found {size!r}.")
    if fit not in FITS:
        raise ValueError(f"prepare fit: expected one of {', '.join(FITS)}, found {fit!r}.")
    if codec not in ("auto", *get_args(Codec)):
        raise ValueError(f"prepare codec: expected auto or one of {', '.join(get_args(Codec))}, found {codec!r}.")


def _place(source: Readable, out: str | PathLike[str] | None) -> CopyFolder:
    place = CopyFolder.of(source, out)
    if out is None and not _of_a_lake(source) and next(iter(place.store.list(names.VERSIONS)), None) is None:
        raise ReadOnlyError(
            f"{source.root} is no dataset of ours to keep training copies in.",
            path=source.root,
            hint="Name a folder for them: out=, and copies= of Loader.frames.",
        )
    return place


def _of_a_lake(source: Readable) -> bool:
    """Whether it is all of a lake's table, whose clients leave what lies below `_seqlake/` alone, or may remove it."""
    opened = ability(source, OfATable)
    return opened is not None and ability(opened.table, OfALake) is not None


def _room(place: CopyFolder, columns: int) -> tuple[int, int]:
    """Bytes for each of some columns: free on the disk, 0 in a bucket; of memory."""
    store = place.store
    disk = store.free() if isinstance(store, LocalStore) else 0
    return disk // columns, machine_memory() // columns


def _plan(
    source: Readable,
    place: CopyFolder,
    originals: Originals,
    name: str,
    size: tuple[int, int],
    /,
    *,
    fit: Fit,
    fps: float | None,
    codec: str,
    budget: int | None,
    room: tuple[int, int],
) -> _Plan:
    """What is to be done for one column; writes nothing."""
    column = _video(source, name)
    every = _every(source, column, fps)
    height, width = size
    wanted = CopySettings(column=name, height=height, width=width, fit=fit, every=every)
    there = place.settings(name, (height, width))
    if there is not None:
        wanted = replace(wanted, codec=there.codec if codec == "auto" else codec)  # type: ignore[arg-type]
        if wanted != there:
            raise SeqlakeError(
                f"Expected no other training copies of that column and size, found {there.describe()}; asked for "
                f"{wanted.describe()}.",
                path=place.location,
                hint="Drop them first (seqlake prepare --drop), or make the others in a folder of their own (out=).",
            )
    tasks = _tasks(source, name, every)
    group = CopySet(place=place, settings=wanted, originals=originals)
    assert column.type is not None
    prints = {reference: _fingerprint(originals, reference) for reference in tasks}
    nbytes = sum(size for size, _ in prints.values())
    why: tuple[str, ...] = ()
    estimate = 0
    references = [reference for reference, (_, is_there) in prints.items() if is_there]
    if references and ((codec == "auto" and there is None) or budget is not None):
        asked = get_args(Codec) if codec == "auto" and there is None else (wanted.codec if there else codec,)
        measured = measure(group, column.type, references, codecs=asked)
        disk, memory = room
        allowed = Allowance.by_default(nbytes, disk=disk, memory=memory) if budget is None else Allowance(nbytes=budget)
        chosen, reason = choose(measured, budget=allowed)
        why = (f"chose {reason}", *map(str, measured)) if len(measured) > 1 else (str(chosen),)
        if budget is not None and chosen.nbytes > budget:
            raise SeqlakeError(
                f"Expected copies of column {name!r} within {budget:,} bytes, found about {chosen.nbytes:,} with "
                f"{chosen.codec}.",
                path=place.location,
                hint="Allow more (budget), or ask for smaller pictures or a lower rate.",
            )
        wanted, estimate = replace(wanted, codec=chosen.codec), chosen.nbytes
    elif there is None:
        wanted = replace(wanted, codec="h264" if codec == "auto" else codec)  # type: ignore[arg-type]
    group = replace(group, settings=wanted)
    left = [task for task in tasks.values() if there is None or not _is_made(group, task)]
    left.sort(key=lambda task: -prints[task.reference][0].bit_length())  # no long film when all others have ended
    prepared = Prepared(
        settings=wanted,
        location=f"{place.location}/{wanted.folder}",
        files=len(tasks),
        there=len(tasks) - len(left),
        written=len(left),
        nbytes=estimate * len(left) // max(1, len(tasks)),
        originals=nbytes,
        why=why,
    )
    return _Plan(group=group, column=column, tasks=left, prepared=prepared)


def _video(source: Readable, name: str) -> Column:
    """A column of videos in files of their own."""
    videos = [one for one in source.schema if source.schema[one].medium == "video"]
    if name not in source.schema:
        raise no_column(name, list(source.schema))
    if source.schema[name].medium != "video":
        raise SchemaMismatchError(
            f"Training copies are of videos: expected one of {', '.join(videos) or 'no column, there are none'}; "
            f"found {name!r}."
        )
    column = source.schema[name]
    if column.inline:
        raise SchemaMismatchError(
            f"Column {name!r} holds its videos in the rows; training copies are of files.",
            hint="sl.extract_files takes them out of the rows.",
        )
    return column


def _every(source: Readable, column: Column, fps: float | None) -> int:
    """Of how many frames one is kept."""
    if fps is None:
        return 1
    rate = own_rate(column) or clock_of(source.schema).rate
    if rate is None:
        raise ValueError(f"prepare fps: column {column.name!r} declares no rate, so no lower one can be kept.")
    every = Fraction(rate) / Fraction(str(fps)) if fps > 0 else Fraction(0)
    if every.denominator != 1 or every < 1:
        raise ValueError(
            f"prepare fps: expected a rate that divides the {float(rate):g} a second of column {column.name!r}, "
            f"found {fps:g}."
        )
    return int(every)


def _tasks(source: Readable, name: str, every: int) -> dict[str, CopyTask]:
    """Each file that rows name, in their order, with the frames that are kept of it."""
    phases: dict[str, set[int]] = {}
    rows = sum(shard.rows for shard in source.shards())
    for cell in cells_of(source, name, np.arange(rows, dtype=np.int64)):
        place = place_of(cell)
        if place is not None:
            phases.setdefault(place.reference, set()).add(place.first % every)
    return {reference: CopyTask(reference=reference, phases=tuple(sorted(of))) for reference, of in phases.items()}


def _fingerprint(originals: Originals, reference: str) -> tuple[int, bool]:
    """Bytes of a file, and whether it is there."""
    try:
        return originals.fingerprint(reference).nbytes, True
    except MissingFileError:
        return 0, False


def _is_made(group: CopySet, task: CopyTask) -> bool:
    """Whether a file has a copy that is still of it, and has the frames that are wanted."""
    try:
        copied = group.find(task.reference)
        copied.decoder().close()
    except (MissingCopyError, DecodeError, MissingFileError):
        return False
    return set(task.phases) <= set(copied.record.phases)


def _agreed(
    executor: Executor, planned: Callable[[], list[_Plan]], source: Readable, place: CopyFolder, originals: Originals
) -> Sequence[_Plan]:
    """The plans; of shares those of the first to come: codecs are measured once, and copies come to be meanwhile."""
    if not isinstance(executor, RecordedRun):
        return planned()
    known = executor.agree("plan", lambda: [(one.group.settings, list(one.tasks), one.prepared) for one in planned()])
    return [
        _Plan(
            group=CopySet(place=place, settings=settings, originals=originals),
            column=_video(source, settings.column),
            tasks=tasks,
            prepared=prepared,
        )
        for settings, tasks, prepared in known
    ]


@dataclass(frozen=True, slots=True)
class _Makers:
    """Makes copies of several columns; a task is one file of one of them."""

    makers: Sequence[CopyMaker]

    def __call__(self, task: tuple[int, CopyTask], /) -> CopyMade:
        return self.makers[task[0]](task[1])


def _run(plans: Sequence[_Plan], executor: Executor) -> Iterator[Prepared]:
    """Make the copies of all columns."""
    folders = [f"{plan.group.place.prefix}{plan.group.settings.folder}" for plan in plans]
    for plan, folder in zip(plans, folders, strict=True):
        settings, store = plan.group.settings, plan.group.place.store
        if not isinstance(executor, RecordedRun):  # others may be making theirs
            store.delete([path for path, _ in list_without_links(store, folder) if path.endswith(PASSING)])
        if plan.group.place.settings(settings.column, settings.size) is None:
            store.put(f"{folder}/{SETTINGS}", settings.document())
    results: list[dict[str, CopyMade]] = [{} for _ in plans]
    tasks = [(number, task) for number, plan in enumerate(plans) for task in plan.tasks]
    names = ", ".join(repr(plan.group.settings.column) for plan in plans)
    with counting(len(tasks), f"copies of {names}", unit="videos") as count:

        def done(task: tuple[int, CopyTask], result: CopyMade) -> None:
            results[task[0]][task[1].reference] = result
            count()

        makers = _Makers([CopyMaker(group=plan.group, column=_type_of(plan)) for plan in plans])
        executor.run(makers, tasks, done=done, tick=lambda: None)
    for plan, folder, some in zip(plans, folders, results, strict=True):
        plan.group.place.store.sync(folder)
        damaged = {reference: result.damage for reference, result in some.items() if result.damage}
        yield replace(
            plan.prepared,
            written=len(some) - len(damaged),
            nbytes=sum(result.nbytes for result in some.values()),
            frames=sum(result.frames for result in some.values()),
            damaged=damaged,
        )


def _type_of(plan: _Plan) -> ColumnType:
    assert plan.column.type is not None
    return plan.column.type
