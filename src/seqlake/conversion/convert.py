"""`convert`: every readable dataset into every writable one, in parts that survive an interruption."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from seqlake import grouping
from seqlake.abilities import Discards, ability, storage_of
from seqlake.conversion import on_processes
from seqlake.conversion.plan import BYTES_PER_PART, Plan, Task, plan
from seqlake.conversion.receipts import Work
from seqlake.conversion.targets import TABLE_OPTIONS, FormatTarget, TableTarget, Target, dropped_by
from seqlake.dataset.writing.pictures import Pictures
from seqlake.errors import CommitUnknownError, SeqlakeError
from seqlake.files.locations import absolute
from seqlake.files.room import room_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.dataset.dataset import Dataset
    from seqlake.protocols import Readable, Sink

_log = logging.getLogger(__name__)
_IMAGES = frozenset({"images", "fps", "encoding"})
_LAKES = ("delta:", "iceberg:", "ducklake:", "uc:")


@overload
def convert(
    source: str | os.PathLike[str] | Readable,
    out: str | os.PathLike[str],
    /,
    *,
    to: str | None = ...,
    workers: int | None = ...,
    on: str = ...,
    work: str | os.PathLike[str] | None = ...,
    progress: bool | None = ...,
    dry_run: Literal[False] = ...,
    **options: Any,
) -> Dataset | None: ...


@overload
def convert(
    source: str | os.PathLike[str] | Readable,
    out: str | os.PathLike[str],
    /,
    *,
    to: str | None = ...,
    workers: int | None = ...,
    on: str = ...,
    work: str | os.PathLike[str] | None = ...,
    progress: bool | None = ...,
    dry_run: Literal[True],
    **options: Any,
) -> Plan: ...


def convert(
    source: str | os.PathLike[str] | Readable,
    out: str | os.PathLike[str],
    /,
    *,
    to: str | None = None,
    workers: int | None = None,
    on: str = "processes",
    work: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    dry_run: bool = False,
    **options: Any,
) -> Dataset | Plan | None:
    """Turn a dataset of any format into a Mixtrain dataset, or into another format.

    Parts are written by several processes and shown by one commit: until then, and after any failure, nothing of it
    is visible at `out`. With `work`, finished parts are remembered there; the same call after an interruption writes
    only the rest and ends in the same dataset. More than one worker needs `if __name__ == "__main__":` in scripts.

    Args:
        source: A folder or URI that `scan` reads, a selection, or any `Readable`.
        out: A new or empty folder, URI or lake address.
        to: The name of the format to write; None: a Mixtrain dataset.
        workers: Processes; None: one per core. The result does not depend on it.
        on: What runs the parts: `processes`.
        work: A local folder for receipts; None: a temporary one, and a failed conversion leaves nothing.
        progress: Show a bar on stderr; None: where stderr is a terminal.
        dry_run: Write nothing and return the `Plan`: counts, bytes, columns, what would be dropped or is missing.
        **options: For a Mixtrain dataset `layout`, `files`, `rows_per_shard`, `bytes_per_shard`, `fixed_size_inner`;
            `images`, what becomes of images in rows: `"bytes"` (they stay there), `"video"` or `"files"`, or a mapping
            of columns to these; with videos `fps`, where the source tells no rate, and `encoding`;
            `adopt=True` takes shards over as they are where their bytes already say what the new dataset says:
            linked on one disk, copied elsewhere, never decoded (the others are written anew, and why is logged);
            `storage` of `out`, and of a `source` given by its location; `bytes_per_part`, the source bytes of one part
            (128 MiB); of samples `sequence_id` and `steps`, the columns that put them together, or `sequence_id=True`
            for a sequence each; the rest is for the format that is written (with `to`) or else read.

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
    if on != "processes":
        raise ValueError(f"`on` is 'processes', found {on!r}.")
    storage = options.pop("storage", None)
    adopt = bool(options.pop("adopt", False))
    bytes_per_part = options.pop("bytes_per_part", BYTES_PER_PART)
    of_table = {name: options.pop(name) for name in TABLE_OPTIONS & options.keys()} if to is None else {}
    asked = to is None and "images" in options
    of_images = {name: options.pop(name) for name in _IMAGES & options.keys()} if asked else {}
    readable = _opened(source, storage, options if to is None else {}, sequences=to is None)
    planned = plan(readable, bytes_per_part=bytes_per_part, dropped=dropped_by(to, readable.schema))
    pictures = Pictures.of(of_images.pop("images", {}), planned.read, **of_images)
    planned = replace(planned, schema=pictures.declared(planned.read))
    place = os.fspath(out)
    place = place if place.startswith(_LAKES) else absolute(place)
    if adopt and (to is not None or pictures.forms):
        raise ValueError("adopt=True takes shards over as they are: into a Mixtrain dataset, images as they come.")
    target: Target
    if to is None:
        from_ = storage_of(readable)
        placed = {"location": place, "schema": planned.schema, "storage": storage}
        target = TableTarget(**placed, source_storage=from_, options=of_table, pictures=pictures)
    else:
        target = FormatTarget(name=to, location=place, schema=planned.schema, storage=storage, options=options)
    if dry_run:
        return planned
    _tell(planned)
    given = _told(sorted({**of_table, **options}.items()))
    identity = {**_identity(planned), "out": place, "to": to, "options": given, "pictures": _told(pictures)}
    with room_in(place):
        if adopt and isinstance(target, TableTarget):
            return _adopted(readable, target)
        if work is not None:
            _run(planned, target, Work(Path(work)), identity, workers=workers, progress=progress)
        else:
            _run_once(planned, target, identity, workers=workers, progress=progress)
        return target.result()


def _adopted(readable: Readable, target: TableTarget) -> Dataset:
    """Shards linked or copied into a new table, in one commit."""
    from seqlake.conversion.adopting import adopt
    from seqlake.dataset.writing.staging import Staging

    target.check()
    sink: Any
    sink, state = target.begin(None)
    staging = Staging(sink.table, target.schema, shape=sink.shape, transaction=state["transaction"])
    try:
        found = adopt(readable, target.result(), staging, files=target.options.get("files", "copy"))
        staging.commit("adopt")
    except CommitUnknownError:
        raise
    except BaseException:
        _undo(sink, target, state)
        raise
    _log.info("%s", found)
    return target.result()


def _tell(planned: Plan) -> None:
    """Log what will not arrive."""
    for finding in planned.findings:
        if finding.severity != "note":
            _log.warning("%s", finding)
    for name, reason in planned.dropped.items():
        _log.warning("Column %s is dropped: %s", name, reason)


def _opened(source: Any, storage: Mapping[str, str] | None, options: dict[str, Any], *, sequences: bool) -> Readable:
    from seqlake.dataset.opening import scan

    of_samples = {name: options.pop(name) for name in grouping.OPTIONS & options.keys()}
    readable: Readable
    if isinstance(source, str | os.PathLike):
        readable = scan(source, storage=storage, **options)
    elif options:
        raise TypeError(f"Unknown options for this source: {', '.join(sorted(options))}.")
    else:
        readable = scan(source, storage=storage_of(source))
    return grouping.as_sequences(readable, **of_samples) if sequences else readable


def _identity(planned: Plan) -> dict[str, Any]:
    """What must be equal for receipts of an earlier run to count."""
    return {
        "format": 1,
        "source": planned.fingerprint,
        "columns": [[field.name, str(field.type)] for field in planned.schema.arrow],
        "parts": [[[p.shard.key, p.start, p.stop] for p in task.pieces] for task in planned.tasks],
    }


def _told(value: object) -> str:
    """A value as text that another process writes the same: no addresses, sets in order."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(_ordered(value)))


def _ordered(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, dict):
        return {key: _ordered(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    return value


def _run_once(
    planned: Plan, target: Target, identity: Mapping[str, Any], *, workers: int | None, progress: bool | None
) -> None:
    """With a work folder of its own; whatever fails, nothing stays behind."""
    folder = Path(tempfile.mkdtemp(prefix="seqlake-convert-"))
    try:
        _run(planned, target, Work(folder), identity, workers=workers, progress=progress, keep=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    planned: Plan,
    target: Target,
    work: Work,
    identity: Mapping[str, Any],
    *,
    workers: int | None,
    progress: bool | None,
    keep: bool = True,
) -> None:
    if not work.begun:
        target.check()
    work.begin(identity)
    sink = state = None
    try:
        sink, state = target.begin(work.state())
        work.keep_state(state)
        _write_parts(planned, sink, work, workers=workers, progress=progress)
        receipts = work.receipts()
    except BaseException as error:
        if not keep and sink is not None:
            _undo(sink, target, state)
        elif keep and sink is not None and isinstance(error, SeqlakeError):
            kept = f"Finished parts are kept in {work.folder}: the same call goes on from there."
            error.hint = f"{error.hint} {kept}" if error.hint else kept
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


def _write_parts(planned: Plan, sink: Sink, work: Work, *, workers: int | None, progress: bool | None) -> None:
    from tqdm import tqdm

    finished = work.receipts()
    tasks: Sequence[Task] = [task for task in planned.tasks if task.part not in finished]
    before = planned.rows - sum(task.rows for task in tasks)
    hidden = None if progress is None else not progress
    with tqdm(total=planned.rows, initial=before, unit=" sequences", disable=hidden) as bar:

        def done(task: Task, receipt: Any) -> None:
            work.keep(task.part, receipt)
            bar.update(task.rows)

        on_processes.run(tasks, sink, planned.read, workers=workers, done=done)


def _undo(sink: Sink, target: Target, state: Any) -> None:
    """Remove what was staged and made; the error that led here is what the user must see."""
    try:
        written = ability(sink, Discards)
        if written is not None:
            written.discard()
        target.undo(state)
    except (OSError, SeqlakeError) as error:
        _log.warning("Some of what was written could not be removed: %s", error)
