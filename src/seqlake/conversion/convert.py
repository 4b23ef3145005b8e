"""`convert`: every readable dataset into every writable one, in parts that survive an interruption.

The plan, which rows of which shards become which part, is pure, and the same however many workers there are; a part
runs alike here, in another process and on a cluster.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from seqlake.abilities import Discards, KeepsFiles, OpensFiles, Renews, ability, storage_of
from seqlake.bars import progress_bar
from seqlake.conversion.parts import convert_part
from seqlake.conversion.planning import (
    LEAST_ENCODED,
    LEAST_PER_PART,
    PARTS,
    PartTask,
    Plan,
    plan,
    stable_text,
    takes_rate,
)
from seqlake.conversion.targets import FormatTarget, TableTarget, Target, dropped_by, taken_by, writing_options
from seqlake.dataset.opening import lake_of
from seqlake.dataset.writing import splitting
from seqlake.dataset.writing.pictures import Pictures
from seqlake.dataset.writing.references import refers
from seqlake.dataset.writing.staging import SHARD_BYTES, ShardShape, Staging
from seqlake.errors import (
    CommitUnknownError,
    CorruptFileError,
    DecodeError,
    SchemaMismatchError,
    SeqlakeError,
    ValidationError,
)
from seqlake.executors import executor_of, expect, kept
from seqlake.executors.processes import Processes
from seqlake.files.cache import user_folder
from seqlake.files.locations import absolute, is_local, local_path, redacted
from seqlake.files.room import room_in
from seqlake.grouping import OPTIONS
from seqlake.protocols import Mapped, Readable, is_readable
from seqlake.receipts import WorkFolder
from seqlake.shares import Ended, Finish, RecordedRun, Resumable, Share, begun, inner_of
from seqlake.versions import shard_formats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from seqlake.dataset.dataset import Dataset
    from seqlake.dataset.writing.carrying import FilesMode
    from seqlake.executors import Executor
    from seqlake.media import Encoding
    from seqlake.protocols import Sink
    from seqlake.spec.schema import Schema

_log = logging.getLogger(__name__)
_OF_SHARDS = frozenset({"layout", "shards", "files", "rows_per_shard", "bytes_per_shard", "fixed_size_inner"})
_OF_ROWS = frozenset({*OPTIONS, "map", "column_types"})
_FAULTS = (ValidationError, SchemaMismatchError, CorruptFileError, DecodeError)  # of the data, at every run
_RENEW_SECONDS = 600.0
_LOOKED_AT = 1_000  # files of a source, to learn whether it is large
Keep: TypeAlias = bool | Literal["resumable"]


@overload
def convert(
    source: str | os.PathLike[str] | Readable,
    out: str | os.PathLike[str],
    /,
    *,
    to: str | None = ...,
    storage: Mapping[str, str] | None = ...,
    sequence_id: str | bool | None = ...,
    steps: str | bool | None = ...,
    images: str | Mapping[str, str] | None = ...,
    fps: float | Fraction | None = ...,
    encoding: Encoding | Mapping[str, Encoding] | None = ...,
    files: FilesMode | Literal["split"] | None = ...,
    layout: str | None = ...,
    shards: str | None = ...,
    rows_per_shard: int | None = ...,
    bytes_per_shard: int | None = ...,
    fixed_size_inner: bool | None = ...,
    adopt: bool = ...,
    bytes_per_part: int | None = ...,
    workers: int | None = ...,
    on: str | Executor = ...,
    work: str | os.PathLike[str] | bool | None = ...,
    progress: bool | None = ...,
    dry_run: Literal[False] = ...,
    **options: Any,
) -> Dataset | None: ...


@overload
def convert(
    source: str | os.PathLike[str] | Readable, out: str | os.PathLike[str], /, *, dry_run: Literal[True], **options: Any
) -> Plan: ...


def convert(
    source: str | os.PathLike[str] | Readable,
    out: str | os.PathLike[str],
    /,
    *,
    to: str | None = None,
    storage: Mapping[str, str] | None = None,
    sequence_id: str | bool | None = None,
    steps: str | bool | None = None,
    images: str | Mapping[str, str] | None = None,
    fps: float | Fraction | None = None,
    encoding: Encoding | Mapping[str, Encoding] | None = None,
    files: FilesMode | Literal["split"] | None = None,
    layout: str | None = None,
    shards: str | None = None,
    rows_per_shard: int | None = None,
    bytes_per_shard: int | None = None,
    fixed_size_inner: bool | None = None,
    adopt: bool = False,
    bytes_per_part: int | None = None,
    workers: int | None = None,
    on: str | Executor = "processes",
    work: str | os.PathLike[str] | bool | None = None,
    progress: bool | None = None,
    dry_run: bool = False,
    **options: Any,
) -> Dataset | Plan | None:
    """Turn a dataset of any format into a Mixtrain dataset, or into another format.

    Parts are written by several processes and shown by one commit: until then, and after any failure, nothing of it
    is visible at `out`. With `work`, finished parts are remembered there; the same call after an interruption writes
    only the rest and ends in the same dataset. More than one worker needs `if __name__ == "__main__":` in scripts.

    Args:
        source: A folder or URI that `scan` reads, a selection, any `Readable`, or an object that `scan` takes.
        out: A new or empty folder, URI or lake address.
        to: The name of the format to write; None: a Mixtrain dataset. What this function does with the options from
            `sequence_id` to `fixed_size_inner` is for a Mixtrain dataset; with `to` the format is given them.
        storage: Options of the object store of `out`, and of a `source` given by its location.
        sequence_id: Of samples: the column that says which sequence each belongs to; True: each is a sequence.
        steps: Of samples: the column that orders those of a sequence; True: the order of the source. Then `videos`,
            `timestamps`, `keep_constant` and `map` are options as well, whatever the source is.
        images: What becomes of images in rows: `"bytes"` (they stay there), `"video"` or `"files"`, or a mapping of
            columns to these.
        fps: Steps per second, for all that take such an option: the reader of a source given by its location (HDF5;
            MCAP and bags, which it puts on that clock), rows put together by `steps`, videos made of images where the
            source tells no rate, and the writer of `to` (LeRobot).
        encoding: With videos: how they are encoded, all or by column.
        files: What happens to relative file references: `"copy"`, `"hardlink"` or `"reference"`. `"split"` copies, too,
            and where rows share a video gives each a file of its own, by copying packets. So it is by default, but for
            a dataset of ours, whose files are copied as they are.
        layout: `"training"` (the default), for random windows without decoding, or `"archive"`, for small files.
        shards: Their format: `parquet`, `lance` or `vortex`; by default as the source says.
        rows_per_shard: Close a shard at so many rows.
        bytes_per_shard: Close a shard once it has so many bytes; 128 MiB by default.
        fixed_size_inner: Store fixed-size inner lists.
        adopt: Take shards over as they are where their bytes already say what the new dataset says: linked on one
            disk, copied elsewhere, never decoded. The others are written anew, and why is logged.
        bytes_per_part: The source bytes of one part; by default there are 1, 2, 4, 8 or 16 equal ones of at most
            32 MiB (2 MiB where images become videos or shared videos are cut, one file a row), or larger ones.
        workers: Processes; None: one per core. The result does not depend on it.
        on: What runs the parts: `"processes"`, `"ray"`, or an `Executor` that was made with options of its own.
        work: A local folder for receipts; True: one in the user's cache, named for `out`, as the command line has it;
            None: a temporary one, and a failed conversion leaves nothing.
        progress: Show a bar on stderr; None: where stderr is a terminal.
        dry_run: Write nothing and return the `Plan`: counts, bytes, columns, what would be dropped or is missing.
        **options: Those of the format that is written (with `to`) or else read.

    Returns:
        The new dataset; None if another format was written; the plan of a dry run.

    Raises:
        DatasetNotFoundError: Nothing at `source`.
        DatasetExistsError: Something at `out`.
        UnknownPluginError: No format called `to`.
        SeqlakeError: A part failed, in the class of what went wrong; the message names the source shard.

    Example:
        ```python
        ds = sl.convert("bridge_rlds/1.0.0", "data/bridge", split="train")
        sl.convert(ds.where("split = 'val'"), "export/mds", to="mds")
        ```
    """
    given = {
        "images": images,
        "fps": fps,
        "encoding": encoding,
        "files": files,
        "layout": layout,
        "shards": shards,
        "rows_per_shard": rows_per_shard,
        "bytes_per_shard": bytes_per_shard,
        "fixed_size_inner": fixed_size_inner,
    }
    arranged = {name: option for name, option in (("sequence_id", sequence_id), ("steps", steps)) if option is not None}
    with kept(executor_for(on, workers)) as executor:
        if not dry_run and not adopt:
            start_early(executor, source)
        prepared = prepare(
            source,
            out,
            to=to,
            storage=storage,
            ours={name: option for name, option in given.items() if option is not None},
            adopt=adopt,
            bytes_per_part=bytes_per_part,
            options={**arranged, **options},
        )
        if dry_run:
            return prepared.rehearsed(work=work)
        return prepared.run(executor, work=work, progress=progress)


def start_early(executor: Executor, source: object, /) -> None:
    """Have workers start while the source is looked at, where it is local and has bytes for several parts.

    Args:
        executor: As `kept` gives it.
        source: As for `convert`.
    """
    if not isinstance(source, str | os.PathLike) or not is_local(place := os.fspath(source)):
        return
    path, nbytes = local_path(place), 0
    files = (Path(top, name) for top, _, names in os.walk(path) for name in names)
    for file in itertools.islice(itertools.chain([path], files), _LOOKED_AT):
        with suppress(OSError):  # whoever opens it says what is wrong
            nbytes += file.stat(follow_symlinks=False).st_size if file.is_file() else 0
        if nbytes >= 2 * LEAST_PER_PART:
            expect(executor, PARTS)
            return


def prepare(
    source: str | os.PathLike[str] | Readable,
    out: str | os.PathLike[str],
    /,
    *,
    to: str | None = None,
    storage: Mapping[str, str] | None = None,
    ours: Mapping[str, Any],
    adopt: bool = False,
    bytes_per_part: int | None = None,
    options: Mapping[str, Any],
) -> Conversion:
    """Look at the source and plan a conversion; nothing is written.

    Args:
        source: As for `convert`, as all others.
        out: Where to.
        to: The format that is written.
        storage: Of `out`.
        ours: Options of the writer of Mixtrain datasets, those that were given.
        adopt: Take shards over as they are.
        bytes_per_part: Of one part.
        options: All others that were given.
    """
    options, given = dict(options), dict(ours)
    if to is not None:
        mine = writing_options(to)
        reading = {name: options.pop(name) for name in _OF_ROWS if name in options and name not in mine}
        if "fps" in given and takes_rate(source, storage, reading):
            reading["fps"] = given["fps"] if "fps" in mine else given.pop("fps")
        options |= given
    else:
        reading = dict(options)
        if "images" not in given:  # then these are options of the source, if of anything
            reading |= {name: given[name] for name in ("fps", "encoding") if name in given}
        elif "fps" in given and takes_rate(source, storage, reading):
            reading["fps"] = given["fps"]
    readable = _opened(source, storage, reading)
    known = ability(readable, KeepsFiles)
    split = () if adopt or to is not None else _split(given.get("files"), readable.schema, ours=known is not None)
    encoded = to is None and (bool(split) or (given.get("images") or "bytes") not in ("bytes", "files"))
    planned = plan(
        readable,
        bytes_per_part=bytes_per_part,
        least=LEAST_ENCODED if encoded else LEAST_PER_PART,
        dropped=dropped_by(to, readable.schema),
    )
    images, files, fps = given.get("images"), given.get("files"), given.get("fps")
    asked = to is None and images is not None
    pictures = Pictures.of(images or {}, planned.read, fps=fps, encoding=given.get("encoding")) if asked else Pictures()
    planned = replace(planned, schema=splitting.declared(pictures.declared(planned.read), split))
    planned = replace(planned, mapped=_with_media(planned.mapped, pictures, split))
    place = os.fspath(out)
    place = place if lake_of(place) else absolute(place)
    if adopt and (to is not None or pictures.forms or files == "split"):
        raise ValueError("adopt=True takes shards over as they are: into a Mixtrain dataset, images as they come.")
    target: Target
    if to is None:
        target = TableTarget(
            location=place,
            schema=shard_formats.with_new(planned.schema, given.get("shards")),
            storage=storage,
            source_storage=storage_of(readable),
            known=known,
            inside=ability(readable, OpensFiles),
            files="copy" if files is None or files == "split" else files,
            shape=ShardShape(
                rows=given.get("rows_per_shard"),
                nbytes=given.get("bytes_per_shard", SHARD_BYTES),
                layout=given.get("layout", "training"),
                fixed_size_inner=bool(given.get("fixed_size_inner")),
                format=given.get("shards"),
            ),
            pictures=pictures,
            split=split,
        )
    else:
        target = FormatTarget(
            name=to,
            location=place,
            schema=planned.schema,
            storage=storage,
            source_storage=storage_of(readable),
            options=options,
        )
        _say_where_files_stay(planned, to)
    options_given = sorted({**{name: given[name] for name in _OF_SHARDS & given.keys()}, **options}.items())
    identity = {
        **_identity(planned),
        "out": place,
        "to": to,
        "options": stable_text(options_given),
        "pictures": stable_text(pictures),
    }
    return Conversion(
        planned=planned, target=target, place=place, identity=identity, adopted=readable if adopt else None
    )


def _with_media(mapped: Sequence[Mapped], pictures: Pictures, split: Sequence[str]) -> list[Mapped]:
    """The mapping, with what becomes of images and of videos that rows share."""
    said = {name: "images become one video a row" for name, form in pictures.forms.items() if form == "video"}
    said |= {name: "images become files, one a step" for name, form in pictures.forms.items() if form == "files"}
    said |= dict.fromkeys(split, "cut out of shared videos, one file a row")
    result = []
    for one in mapped:
        how = said.get(one.column or "")
        result.append(replace(one, how="; ".join(text for text in (one.how, how) if text)))
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A conversion that is planned and not yet begun.

    Attributes:
        planned: What it does.
        target: Where to.
        place: The location of that.
        identity: What must be equal for receipts of an earlier run to count.
        adopted: The source, where its shards are taken over as they are.
    """

    planned: Plan
    target: Target
    place: str
    identity: Mapping[str, Any]
    adopted: Readable | None

    def rehearsed(self, *, work: str | os.PathLike[str] | bool | None = None) -> Plan:
        """The plan, where the real run would not be refused.

        Args:
            work: As for `convert`; a run that goes on finds its own parts there.
        """
        place = folder_of(self.place) if work is True else Path(work) if work else None
        if self.adopted is None and (place is None or not WorkFolder(place).begun):
            self.target.check()
        return self.planned

    def run(
        self,
        executor: Executor,
        /,
        *,
        work: str | os.PathLike[str] | bool | None = None,
        fresh: bool = False,
        progress: bool | None = None,
    ) -> Dataset | None:
        """Do it.

        Args:
            executor: What runs the parts.
            work: As for `convert`.
            fresh: Forget what an interrupted run finished.
            progress: As for `convert`.
        """
        _warn_of_losses(self.planned)
        with room_in(self.place):
            if self.adopted is not None and isinstance(self.target, TableTarget):
                if isinstance(executor, Share):
                    raise Ended(f"{executor} has done its tasks: none, since shards are taken over as they are.")
                return _adopted(self.adopted, self.target)
            if isinstance(executor, Resumable):
                work, executor = executor.folder, inner_of(executor)
            if isinstance(executor, Share | Finish):
                _run_shared(self.planned, self.target, executor, identity=self.identity)
                return self.target.result()
            run = partial(_run, self.planned, self.target, identity=self.identity, executor=executor, progress=progress)
            place = folder_of(self.place) if work is True else work
            if place is None or place is False:
                with tempfile.TemporaryDirectory(prefix="seqlake-convert-", ignore_cleanup_errors=True) as folder:
                    run(WorkFolder(Path(folder)), keep=False)
                return self.target.result()
            held = WorkFolder(Path(place))
            with held.locked():
                if held.begun and (fresh or (work is True and not held.is_of(self.identity))):
                    self._forget(held)
                run(held, keep="resumable" if work is True else True)
            return self.target.result()

    def _forget(self, work: WorkFolder) -> None:
        """Remove what another run left, which nobody goes on with.

        A run that was killed after its commit has left a whole dataset, and parts in another format cannot be told from
        one: both stay, and are then in the way, as whatever lies at the place is.
        """
        if isinstance(self.target, TableTarget) and self.target.is_empty():
            sink, state = self.target.begin(work.state())
            _undo(sink, self.target, state)
        work.clear()


def folder_of(place: str, /) -> Path | None:
    """Where receipts of a conversion into a place lie by default: in the user's cache; None where there is none."""
    top = user_folder()
    return None if top is None else top / "conversions" / hashlib.sha256(place.encode()).hexdigest()[:32]


def _split(files: str | None, schema: Schema, *, ours: bool) -> tuple[str, ...]:
    """The columns whose shared videos are cut, one file a row."""
    if files not in {None, "copy", "hardlink", "reference", "split"}:
        raise ValueError(f"files is 'copy', 'hardlink', 'reference' or 'split', found {files!r}.")
    wanted = files == "split" or (files is None and not ours)
    return tuple(name for name, column in schema.items() if splitting.shares(column)) if wanted else ()


_OF_WORKERS = ("pandas", "seqlake.conversion.convert", "seqlake.dataset.writing.sink")


def executor_for(on: str | Executor, workers: int | None, /) -> Executor:
    """What runs the parts, as `on` and `workers` of `convert` say it; processes have what they need imported once."""
    executor = executor_of(on, workers=workers)
    bare = isinstance(executor, Processes) and not executor.preload
    return replace(executor, preload=_OF_WORKERS) if bare else executor  # type: ignore[type-var]


def _adopted(readable: Readable, target: TableTarget) -> Dataset:
    """Shards linked or copied into a new table, in one commit."""
    from seqlake.conversion.adopting import adopt

    target.check()
    sink: Any
    sink, state = target.begin(None)
    staging = Staging(sink.table, target.schema, shape=sink.shape, transaction=state["transaction"])
    try:
        adopted = adopt(readable, target.result(), staging, files=target.files)
        staging.commit("adopt")
    except CommitUnknownError:
        raise
    except BaseException:
        _undo(sink, target, state)
        raise
    _log.info("%s", adopted)
    return target.result()


def _warn_of_losses(planned: Plan) -> None:
    """Log what will not arrive."""
    for finding in planned.findings:
        if finding.severity != "note":
            _log.warning("%s", finding)
    for name, reason in planned.dropped.items():
        _log.warning("Column %s is dropped: %s", name, reason)


def _say_where_files_stay(planned: Plan, to: str) -> None:
    """Most other formats have no place for files: their references lead to where the files are."""
    schema, taken = planned.schema, taken_by(to, planned.schema)
    naming = [name for name, column in schema.items() if refers(column) and name not in taken]
    if naming and planned.tasks:
        _log.warning(
            "The files that %s name stay at %s: what is written as %r refers to them there. Keep them, or convert "
            "without `to`, which takes them along.",
            ", ".join(naming),
            redacted(planned.tasks[0].root),
            to,
        )


def _opened(source: Any, storage: Mapping[str, str] | None, options: Mapping[str, Any]) -> Readable:
    from seqlake.dataset.opening import scan

    if isinstance(source, str | os.PathLike):
        return scan(source, storage=storage, **options)
    if unknown := sorted(options.keys() - _OF_ROWS) if is_readable(source) else []:
        raise TypeError(f"Unknown options for this source: {', '.join(unknown)}.")
    return scan(source, storage=storage_of(source) if is_readable(source) else None, **options)


def _identity(planned: Plan) -> dict[str, Any]:
    """What must be equal for receipts of an earlier run to count."""
    return {
        "format": 1,
        "source": planned.fingerprint,
        "columns": [[field.name, str(field.type)] for field in planned.schema.arrow],
        "parts": [[[p.shard.key, p.start, p.stop] for p in task.pieces] for task in planned.tasks],
    }


def _run(
    planned: Plan,
    target: Target,
    work: WorkFolder,
    *,
    identity: Mapping[str, Any],
    executor: Executor,
    progress: bool | None,
    keep: Keep,
) -> None:
    """Write the missing parts and commit all; unless `keep`, whatever fails leaves nothing behind.

    With `keep="resumable"` finished parts are kept where the same call may succeed: after a kill, a full disk, a
    store that did not answer; not where the data are at fault.
    """
    if keep == "resumable" and work.begun and target.is_gone():
        work.clear()  # the user removed what an earlier run had written
    if not work.begun:
        if keep == "resumable" or work.is_of(identity):
            work.clear()  # receipts of a run that was killed while it removed them: what they stand for may be gone
        target.check()
    work.begin(identity)
    sink = state = None
    try:
        sink, state = target.begin(work.state())
        work.keep_state(state)
        _write_parts(planned, sink, work, executor=executor, progress=progress)
        receipts = work.receipts()
    except BaseException as error:
        if sink is not None and _is_worthless(error, work, keep):
            _undo(sink, target, state)
            work.clear()
        elif sink is not None:
            _say_what_is_kept(error, work, keep)
        raise
    try:
        sink.commit([receipts[task.part] for task in planned.tasks])
    except CommitUnknownError:
        raise  # it may have been made: running again with the same work folder finds out
    except BaseException as error:
        if keep and isinstance(target, FormatTarget) and not isinstance(error, SeqlakeError):
            raise  # interrupted, not refused: the same call commits the parts that are there
        # A commit that was refused takes its parts along, so their receipts are worth nothing.
        _undo(sink, target, state)
        work.clear()
        raise
    work.clear()


def _run_shared(planned: Plan, target: Target, executor: Executor, *, identity: Mapping[str, Any]) -> None:
    """Write the parts of one share, or commit those of all; what fails leaves everything for the next process."""

    def begin() -> Any:
        return target.begin(None)[1]

    def lost(state: Any) -> None:
        written = ability(target.begin(state)[0], Discards) if state is not None else None
        if written is not None:
            written.discard()

    with begun(executor, "convert", identity) as run:
        assert isinstance(run, RecordedRun)
        state = run.agree("sink", begin, check=target.check, undo=lost)
        sink, _ = target.begin(state)
        receipts: dict[int, Any] = {}

        def done(task: PartTask, receipt: Any) -> None:
            receipts[task.part] = receipt

        part_run = partial(convert_part, sink=sink, schema=planned.read)
        run.run(part_run, planned.tasks, done=done, tick=_Renewal(sink).if_due)
        run.stop()
        try:
            sink.commit([receipts[task.part] for task in planned.tasks])
        except CommitUnknownError:
            raise
        except SeqlakeError:  # refused, at every run
            _undo(sink, target, state)
            run.forget()
            raise


def _is_worthless(error: BaseException, work: WorkFolder, keep: Keep) -> bool:
    """Whether finished parts are of no use after a failure."""
    return not keep or (keep == "resumable" and (isinstance(error, _FAULTS) or not work.receipts()))


def _say_what_is_kept(error: BaseException, work: WorkFolder, keep: Keep) -> None:
    kept = f"Finished parts are kept in {work.folder}: the same call goes on from there."
    if isinstance(error, SeqlakeError):
        error.hint = f"{error.hint} {kept}" if error.hint else kept
    elif keep == "resumable":
        _log.warning("%s", kept)


def _write_parts(planned: Plan, sink: Sink, work: WorkFolder, *, executor: Executor, progress: bool | None) -> None:
    finished = work.receipts()
    tasks: Sequence[PartTask] = [task for task in planned.tasks if task.part not in finished]
    before = planned.rows - sum(task.rows for task in tasks)
    hidden = None if progress is None else not progress
    with progress_bar()(total=planned.rows, initial=before, unit=" sequences", disable=hidden) as bar:
        amount, total = sum(planned.bytes_of(part) for part in finished), planned.bytes_of(None)

        def done(task: PartTask, receipt: Any) -> None:
            nonlocal amount
            work.keep(task.part, receipt)
            amount += planned.bytes_of(task.part)
            bar.set_postfix_str(f"{amount / 1e6:,.0f} of {total / 1e6:,.0f} MB", refresh=False)
            bar.update(task.rows)

        part_run = partial(convert_part, sink=sink, schema=planned.read)
        executor.run(part_run, tasks, done=done, tick=_Renewal(sink).if_due)


class _Renewal:
    """Tells the sink at intervals that this conversion is alive, however long a part takes."""

    def __init__(self, sink: Sink) -> None:
        self._sink = ability(sink, Renews)
        self._last = time.monotonic()

    def if_due(self) -> None:
        if self._sink is not None and time.monotonic() - self._last >= _RENEW_SECONDS:
            self._sink.renew()
            self._last = time.monotonic()


def _undo(sink: Sink, target: Target, state: Any) -> None:
    """Remove what was staged and made; the error that led here is what the user must see."""
    try:
        written = ability(sink, Discards)
        if written is not None:
            written.discard()
        target.undo(state)
    except (OSError, SeqlakeError) as error:
        _log.warning("Some of what was written could not be removed: %s", error)
