"""`convert`: every readable dataset into every writable one, in parts that survive an interruption.

The plan, which rows of which shards become which part, is pure, and the same however many workers there are; a part
runs alike here, in another process and on a cluster.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pyarrow as pa

from seqlake import plugins
from seqlake.abilities import Checked, Discards, Embeds, KeepsFiles, Renews, ability, storage_of
from seqlake.conversion.targets import FormatTarget, TableTarget, Target, dropped_by
from seqlake.dataset.opening import lake_of
from seqlake.dataset.writing import conforming, splitting
from seqlake.dataset.writing.pictures import Pictures
from seqlake.dataset.writing.references import refers
from seqlake.dataset.writing.staging import SHARD_BYTES, ShardShape, Staging
from seqlake.errors import CommitUnknownError, DecodeError, SchemaMismatchError, SeqlakeError, ValidationError, in_line
from seqlake.executors.processes import Processes
from seqlake.executors.receipts import WorkFolder
from seqlake.files.locations import absolute, redacted
from seqlake.files.room import room_in
from seqlake.grouping import as_sequences
from seqlake.protocols import Readable
from seqlake.shards.files import verified
from seqlake.versions import shard_formats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from fractions import Fraction

    from seqlake.dataset.dataset import Dataset
    from seqlake.dataset.writing.carrying import FilesMode
    from seqlake.executors import Executor
    from seqlake.media import Encoding
    from seqlake.protocols import Shard, ShardReader, Sink
    from seqlake.spec.findings import Finding
    from seqlake.spec.schema import Column, Schema

_log = logging.getLogger(__name__)
_OF_SHARDS = frozenset({"layout", "shards", "files", "rows_per_shard", "bytes_per_shard", "fixed_size_inner"})
_RENEW_SECONDS = 600.0

BYTES_PER_PART = 128 << 20


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
    bytes_per_part: int = ...,
    workers: int | None = ...,
    on: Literal["processes"] | Executor = ...,
    work: str | os.PathLike[str] | None = ...,
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
    bytes_per_part: int = BYTES_PER_PART,
    workers: int | None = None,
    on: Literal["processes"] | Executor = "processes",
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
        source: A folder or URI that `scan` reads, a selection, any `Readable`, or an object that `scan` takes.
        out: A new or empty folder, URI or lake address.
        to: The name of the format to write; None: a Mixtrain dataset. What this function does with the options from
            `sequence_id` to `fixed_size_inner` is for a Mixtrain dataset; with `to` the format is given them.
        storage: Options of the object store of `out`, and of a `source` given by its location.
        sequence_id: Of samples: the column that says which sequence each belongs to; True: each is a sequence.
        steps: Of samples: the column that orders those of a sequence; True: the order of the source.
        images: What becomes of images in rows: `"bytes"` (they stay there), `"video"` or `"files"`, or a mapping of
            columns to these.
        fps: With videos: frames per second, where the source tells no rate.
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
        bytes_per_part: The source bytes of one part.
        workers: Processes; None: one per core. The result does not depend on it.
        on: What runs the parts: `"processes"`, or an `Executor` of your own (then `workers` is its business).
        work: A local folder for receipts; None: a temporary one, and a failed conversion leaves nothing.
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
    executor = _executor(on, workers)
    ours = {
        "sequence_id": sequence_id,
        "steps": steps,
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
    given = {name: option for name, option in ours.items() if option is not None}
    if to is not None:
        options |= given
    elif images is None:  # then these are options of the source, if of anything
        options |= {name: given[name] for name in ("fps", "encoding") if name in given}
    readable = _opened(source, storage, options if to is None else {})
    if to is None:
        readable = as_sequences(readable, sequence_id=sequence_id, steps=steps)
    planned = plan(readable, bytes_per_part=bytes_per_part, dropped=dropped_by(to, readable.schema))
    asked = to is None and images is not None
    pictures = Pictures.of(images or {}, planned.read, fps=fps, encoding=encoding) if asked else Pictures()
    known = ability(readable, KeepsFiles)
    split = () if adopt or to is not None else _split(files, planned.read, ours=known is not None)
    planned = replace(planned, schema=splitting.declared(pictures.declared(planned.read), split))
    place = os.fspath(out)
    place = place if lake_of(place) else absolute(place)
    if adopt and (to is not None or pictures.forms or files == "split"):
        raise ValueError("adopt=True takes shards over as they are: into a Mixtrain dataset, images as they come.")
    target: Target
    if to is None:
        target = TableTarget(
            location=place,
            schema=shard_formats.with_new(planned.schema, shards),
            storage=storage,
            source_storage=storage_of(readable),
            known=known,
            files="copy" if files is None or files == "split" else files,
            shape=ShardShape(
                rows=rows_per_shard,
                nbytes=SHARD_BYTES if bytes_per_shard is None else bytes_per_shard,
                layout=layout or "training",
                fixed_size_inner=bool(fixed_size_inner),
                format=shards,
            ),
            pictures=pictures,
            split=split,
        )
    else:
        target = FormatTarget(name=to, location=place, schema=planned.schema, storage=storage, options=options)
    if to is not None:
        _say_where_files_stay(planned, to)
    if dry_run:
        return _rehearsed(planned, target, anew=work is None and not adopt)
    _warn_of_losses(planned)
    options_given = sorted({**{name: given[name] for name in _OF_SHARDS & given.keys()}, **options}.items())
    identity = {
        **_identity(planned),
        "out": place,
        "to": to,
        "options": _text(options_given),
        "pictures": _text(pictures),
    }
    with room_in(place):
        if adopt and isinstance(target, TableTarget):
            return _adopted(readable, target)
        run = partial(_run, planned, target, identity=identity, executor=executor, progress=progress)
        if work is not None:
            run(WorkFolder(Path(work)), keep=True)
        else:
            with tempfile.TemporaryDirectory(prefix="seqlake-convert-", ignore_cleanup_errors=True) as folder:
                run(WorkFolder(Path(folder)), keep=False)
        return target.result()


def _split(files: str | None, schema: Schema, *, ours: bool) -> tuple[str, ...]:
    """The columns whose shared videos are cut, one file a row."""
    if files not in {None, "copy", "hardlink", "reference", "split"}:
        raise ValueError(f"files is 'copy', 'hardlink', 'reference' or 'split', found {files!r}.")
    wanted = files == "split" or (files is None and not ours)
    return tuple(name for name, column in schema.items() if splitting.shares(column)) if wanted else ()


def _executor(on: str | Executor, workers: int | None) -> Executor:
    if not isinstance(on, str):
        return on
    if on != "processes":
        raise ValueError(f"`on` is 'processes' or an executor, found {on!r}.")
    return Processes(workers=workers)


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
    """Other formats have no place for files: their references lead to where the files are."""
    schema = planned.schema
    known = ability(plugins.load("formats", to), Embeds)
    embedded = set() if known is None else set(known.embedded(schema))
    naming = [name for name, column in schema.items() if refers(column) and name not in embedded]
    if naming and planned.tasks:
        _log.warning(
            "The files that %s name stay at %s: what is written as %r refers to them there. Keep them, or convert "
            "without `to`, which takes them along.",
            ", ".join(naming),
            redacted(planned.tasks[0].root),
            to,
        )


def _rehearsed(planned: Plan, target: Target, *, anew: bool) -> Plan:
    """The plan, where the real run would not be refused; `anew`: it goes on with nothing that is there."""
    if anew:
        target.check()
    return planned


def _opened(source: Any, storage: Mapping[str, str] | None, options: Mapping[str, Any]) -> Readable:
    from seqlake.dataset.opening import scan

    if isinstance(source, str | os.PathLike):
        return scan(source, storage=storage, **options)
    if options and isinstance(source, Readable):
        raise TypeError(f"Unknown options for this source: {', '.join(sorted(options))}.")
    return scan(source, storage=storage_of(source), **options)


def _identity(planned: Plan) -> dict[str, Any]:
    """What must be equal for receipts of an earlier run to count."""
    return {
        "format": 1,
        "source": planned.fingerprint,
        "columns": [[field.name, str(field.type)] for field in planned.schema.arrow],
        "parts": [[[p.shard.key, p.start, p.stop] for p in task.pieces] for task in planned.tasks],
    }


def _text(value: object) -> str:
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


def _run(
    planned: Plan,
    target: Target,
    work: WorkFolder,
    *,
    identity: Mapping[str, Any],
    executor: Executor,
    progress: bool | None,
    keep: bool,
) -> None:
    """Write the missing parts and commit all; unless `keep`, whatever fails leaves nothing behind."""
    if not work.begun:
        target.check()
    work.begin(identity)
    sink = state = None
    try:
        sink, state = target.begin(work.state())
        work.keep_state(state)
        _write_parts(planned, sink, work, executor=executor, progress=progress)
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


def _write_parts(planned: Plan, sink: Sink, work: WorkFolder, *, executor: Executor, progress: bool | None) -> None:
    from tqdm import tqdm

    finished = work.receipts()
    tasks: Sequence[PartTask] = [task for task in planned.tasks if task.part not in finished]
    before = planned.rows - sum(task.rows for task in tasks)
    hidden = None if progress is None else not progress
    with tqdm(total=planned.rows, initial=before, unit=" sequences", disable=hidden) as bar:

        def done(task: PartTask, receipt: Any) -> None:
            work.keep(task.part, receipt)
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


_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Some rows of one shard, from `start` to before `stop`."""

    shard: Shard
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """One part: what one worker turns into one receipt; picklable.

    Attributes:
        part: Its number, from 0.
        pieces: In the order of the source.
        root: What file references of these rows resolve against.
    """

    part: int
    pieces: Sequence[RowRange]
    root: str

    @property
    def rows(self) -> int:
        """Rows of all its pieces."""
        return sum(piece.stop - piece.start for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What a conversion would do.

    Attributes:
        schema: Of what will be written.
        tasks: One a part, in order.
        shards: Shards that are read.
        nbytes: Bytes of those shards.
        findings: What the source says of itself without reading its rows: missing files, splits, features left out.
        dropped: Columns of the source that the target will not hold, with the reason.
        fingerprint: Of the source.
        read: The same columns as the source has them: images may become videos.
    """

    schema: Schema
    tasks: Sequence[PartTask]
    shards: int
    nbytes: int
    findings: Sequence[Finding]
    dropped: Mapping[str, str]
    fingerprint: str
    read: Schema

    @property
    def rows(self) -> int:
        """Sequences that will be written."""
        return sum(task.rows for task in self.tasks)

    def to_json(self) -> dict[str, object]:
        """Plain values, for machines."""
        return {
            "rows": self.rows,
            "shards": self.shards,
            "bytes": self.nbytes,
            "parts": len(self.tasks),
            "columns": {name: str(self.schema.arrow.field(name).type) for name in self.schema.names},
            "dropped": dict(self.dropped),
            "findings": [str(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        source = f"{self.rows} sequences, {self.nbytes:,} bytes in {self.shards} shards"
        lines = [f"{source}, would be written in {len(self.tasks)} parts."]
        lines += [f"  {name}: {self.schema.arrow.field(name).type}" for name in self.schema.names]
        lines += [f"Dropped: {name} ({reason})" for name, reason in self.dropped.items()]
        lines += [str(finding) for finding in self.findings[:_SHOWN]]
        if len(self.findings) > _SHOWN:
            lines.append(f"... and {len(self.findings) - _SHOWN} findings more.")
        return "\n".join(map(in_line, lines))


def plan(
    source: Readable,
    /,
    *,
    bytes_per_part: int = BYTES_PER_PART,
    dropped: Mapping[str, str] | None = None,
) -> Plan:
    """Cut a source into parts of about equal bytes, in its order.

    Large shards are cut by rows, small ones are joined. Nothing of the machine goes in, so that a conversion that was
    interrupted finds the same parts again, on any number of workers.

    Args:
        source: Rows to convert; no data file is opened.
        bytes_per_part: Source bytes of one part.
        dropped: Columns of the source that will not be written, with the reason.

    Example:
        ```python
        print(plan(sl.scan("bridge_rlds/1.0.0")))
        ```
    """
    if bytes_per_part < 1:
        raise ValueError(f"bytes_per_part is at least 1, found {bytes_per_part}.")
    shards = [verified(shard) for shard in source.shards()]  # what is written anew gets new checksums
    checked = ability(source, Checked)
    dropped = dropped or {}
    schema = source.schema.without(list(dropped)) if dropped else source.schema
    return Plan(
        schema=schema,
        read=schema,
        tasks=list(_tasks(shards, source.root, bytes_per_part)),
        shards=len(shards),
        nbytes=sum(shard.nbytes for shard in shards),
        findings=[] if checked is None else list(checked.check("metadata")),
        dropped=dropped,
        fingerprint=source.fingerprint,
    )


def _tasks(shards: Sequence[Shard], root: str, bytes_per_part: int) -> Iterator[PartTask]:
    part, pieces, held = 0, list[RowRange](), 0.0
    for shard in shards:
        if shard.rows == 0:
            continue
        per_row = max(shard.nbytes / shard.rows, 1.0)
        start = 0
        while start < shard.rows:
            if pieces and held + per_row > bytes_per_part:
                yield PartTask(part=part, pieces=tuple(pieces), root=root)
                part, pieces, held = part + 1, [], 0.0
            stop = min(shard.rows, start + max(1, int((bytes_per_part - held) / per_row)))
            pieces.append(RowRange(shard=shard, start=start, stop=stop))
            held += (stop - start) * per_row
            start = stop
    if pieces:
        yield PartTask(part=part, pieces=tuple(pieces), root=root)


def convert_part(task: PartTask, /, *, sink: Sink, schema: Schema) -> object:
    """Convert one part; what an executor runs.

    Args:
        task: Which rows.
        sink: Where they go; a part that is run again replaces what it wrote.
        schema: What is handed to the sink; columns of the source that it lacks are not read.

    Returns:
        The sink's receipt.

    Raises:
        SeqlakeError: Whatever went wrong, in its own class where it is one of ours; the message names the shard.
    """
    place = _Place()
    try:
        return sink.write(task.part, _batches(task, schema, place), root=task.root)
    except SeqlakeError as error:
        error.message = f"{place.text(task)}: {error.message}"
        error.args = (error.message,)
        raise
    except Exception as error:
        raise SeqlakeError(f"{place.text(task)}: {type(error).__name__}: {error}") from error


class _Place:
    """Where the work is, for messages: a sink asks for batches while it writes."""

    def __init__(self) -> None:
        self.piece: RowRange | None = None

    def text(self, task: PartTask) -> str:
        piece = self.piece or task.pieces[0]
        return f"Part {task.part}, rows {piece.start} to {piece.stop - 1} of the source shard {piece.shard.key!r}"


def _batches(task: PartTask, schema: Schema, place: _Place) -> Iterator[pa.RecordBatch]:
    for piece in task.pieces:
        place.piece = piece
        whole = piece.start == 0 and piece.stop == piece.shard.rows
        reader = piece.shard.open()
        try:
            rows = None if whole else np.arange(piece.start, piece.stop, dtype=np.int64)
            for batch in reader.batches(list(schema.names), rows=rows):
                yield conformed(batch, schema)
        except (SchemaMismatchError, DecodeError) as error:
            _name_sequence(error, reader, piece, schema)
            raise
        finally:
            reader.close()


def _name_sequence(error: SeqlakeError, reader: ShardReader, piece: RowRange, schema: Schema) -> None:
    """Put the first sequence that cannot be read before the message: asked one by one, since it happens once."""
    if schema.id is None:
        return
    for row in range(piece.start, piece.stop):
        alone = np.array([row], np.int64)
        try:
            list(reader.batches(list(schema.names), rows=alone))
        except SeqlakeError:
            try:
                [batch] = reader.batches([schema.id], rows=alone)
            except SeqlakeError:
                return
            error.message = f"sequence {batch.column(0)[0].as_py()!r}: {error.message}"
            return


def conformed(batch: pa.RecordBatch, schema: Schema, /) -> pa.RecordBatch:
    """The batch in the schema's logical types.

    Raises:
        ValidationError: A cell that does not fit; the message names its column and its sequence.
    """
    arrays = []
    for name in schema.names:
        try:
            arrays.append(_fitted(batch.column(name), schema[name]))
        except ValidationError as error:
            raise _misfit(batch, schema[name], schema.id, error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def _fitted(array: pa.Array, column: Column) -> pa.Array:
    if not conforming.fits_column(array.type, column):
        raise SchemaMismatchError(f"Column {column.name!r}: expected {column.logical}, found {array.type}.")
    return conforming.conform_column(array, column, column.logical)


def _misfit(batch: pa.RecordBatch, column: Column, key: str | None, error: ValidationError) -> ValidationError:
    """Which row it was: asked one by one, since it happens once."""
    for row in range(batch.num_rows):
        try:
            _fitted(batch.column(column.name).slice(row, 1), column)
        except ValidationError as alone:
            name = f"sequence {batch.column(key)[row].as_py()!r}" if key in batch.schema.names else f"row {row}"
            return ValidationError(
                f"{name}: {alone.message}", hint="Mend it in the source, or leave the column out with select()."
            )
    return error
