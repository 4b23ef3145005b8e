"""Writes sequences as a LeRobot folder: parts are staged by any process, one commit makes the folder.

```text
<out>/.seqlake_parts/<part>/steps.parquet     one row group an episode
<out>/.seqlake_parts/<part>/episodes.arrow    one row an episode; beside it their statistics
<out>/.seqlake_parts/<part>/<camera>/*.mp4    videos as they will be
<out>/data, videos, meta                      of the commit; meta/info.json last, by which readers know the folder
```

Numbers of episodes, of steps and of tasks count over all parts, so a commit writes the signals again; videos it only
gives their names.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.errors import CorruptFileError, DecodeError, MissingFileError, ValidationError
from seqlake.files.allowed import OUTSIDE
from seqlake.files.appearing import clear, sweep
from seqlake.files.credentials import Storage
from seqlake.files.references import open_reference
from seqlake.files.stores import exists, list_without_links, open_store
from seqlake.formats.lerobot import counting
from seqlake.formats.lerobot.assembling import Assembly
from seqlake.formats.lerobot.columns import EPISODE, ROBOT, SPLIT
from seqlake.formats.lerobot.counting import PictureCounts
from seqlake.formats.lerobot.films import FilmSettings, FilmWriter
from seqlake.formats.lerobot.layout import INFO
from seqlake.formats.lerobot.staging import (
    EPISODES,
    EPISODES_STATISTICS,
    STEPS,
    FolderSettings,
    films_folder,
    part_folder,
)
from seqlake.formats.lerobot.stepping import FeatureSteps, PictureSteps, step_type, steps_of
from seqlake.formats.lerobot.tasks import TASK_INDEX
from seqlake.media.video.opening import open_video
from seqlake.protocols import Source
from seqlake.receipts import by_part
from seqlake.spec.schema import ID
from seqlake.windows.sources import inline_blob, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.formats.lerobot.planning import ExportedFeature, ExportPlan
    from seqlake.formats.lerobot.tasks import TaskTexts
    from seqlake.protocols import Blob, Store
    from seqlake.spec.schema import Schema

TIMESTAMP = "timestamp"
_TOLERANCE = 1e-4  # seconds: of LeRobot, from a step to the frame that it shows


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotSink:
    """See `seqlake.protocols.Sink`; picklable.

    Attributes:
        location: The folder, absolute.
        schema: What is written.
        plan: What becomes of the columns.
        texts: Where tasks come from.
        films: Feature -> how its videos are written.
        folder: Version, and how large files are.
        looked_at: Frames whose pixels are counted: `sampled`, `all`, `none`.
        storage: Options of the store.
        source_storage: Options of the store that the rows' files lie in.
    """

    location: str
    schema: Schema
    plan: ExportPlan
    texts: TaskTexts
    films: Mapping[str, FilmSettings]
    folder: FolderSettings
    looked_at: str
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    source_storage: Mapping[str, str] | None = field(default=None, repr=False)

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> object:
        """Stage one part; again, it replaces itself.

        Raises:
            ValidationError: A sequence that cannot be an episode; the message names it.
        """
        store: Any = open_store(self.location, storage=self.storage)
        prefix = part_folder(part)
        store.delete([path for path, _ in list_without_links(store, prefix)])
        with ExitStack() as held:
            scratch = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="seqlake-lerobot-")))
            return _Part(self, store, part, root, scratch, held).run(rows)

    def commit(self, receipts: Sequence[object], /) -> None:
        """Make the folder of all parts; `meta/info.json` is written last.

        Raises:
            SeqlakeError: A part has no receipt.
            ValidationError: There are no sequences, or pictures of one column have several sizes.
        """
        store: Any = open_store(self.location, storage=self.storage)
        if not exists(store, INFO):  # else it was made, and only the parts are left to remove
            ordered = by_part(receipts)
            if not ordered:
                raise ValidationError("There is no sequence to write, and LeRobot opens no folder without episodes.")
            sweep(store, self.location)
            Assembly(store, self.plan, self.folder, self.schema, ordered).run()
        clear(store, self.location)

    def discard(self) -> None:
        """Remove what was staged, and what a commit that failed had written."""
        store: Any = open_store(self.location, storage=self.storage)
        clear(store, self.location, () if exists(store, INFO) else ("data/", "videos/", "meta/"))


class _Part:
    """One part being staged."""

    def __init__(self, sink: LeRobotSink, store: Store, part: int, root: str, scratch: Path, held: ExitStack) -> None:
        self._sink = sink
        self._store = store
        self._part = part
        self._scratch = scratch
        self._opened = partial(
            open_reference,
            root,
            storage=sink.source_storage,
            allow_outside=sink.source_storage is not None and Storage(sink.source_storage).allows(OUTSIDE),
        )
        self._types = {
            feature.name: step_type(feature, sink.schema[feature.column].logical)
            for feature in sink.plan.features
            if not self._filmed(feature)
        }
        fields = [
            *self._types.items(),
            (TIMESTAMP, pa.float32()),
            ("frame_index", pa.int64()),
            (TASK_INDEX, pa.int64()),
        ]
        self._schema = pa.schema(fields)
        self._steps = scratch / STEPS
        self._writer = held.enter_context(pq.ParquetWriter(self._steps, self._schema, compression="snappy"))
        self._films = {
            feature.name: FilmWriter(
                settings=sink.films[feature.name],
                kind=_kind(sink.schema, feature),
                store=store,
                folder=films_folder(part, place),
                scratch=scratch,
            )
            for place, feature in enumerate(sink.plan.features)
            if self._filmed(feature)
        }
        self._tasks: dict[str, int] = {}
        self._pictures: dict[str, PictureCounts] = {}
        self._shapes: dict[str, list[int]] = {}
        self._episodes: list[dict[str, Any]] = []
        self._statistics: list[str] = []
        self._known: list[pa.RecordBatch] = []

    def _filmed(self, feature: ExportedFeature) -> bool:
        return feature.name in self._sink.films

    def run(self, rows: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        """Stage all rows, and the receipt."""
        for batch in rows:
            self._known.append(batch.select(list(self._sink.plan.episode)))
            for row in range(batch.num_rows):
                self._row(batch, row)
        films = {name: film.close() for name, film in self._films.items()}
        self._writer.close()
        folder = part_folder(self._part)
        self._store.put(f"{folder}/{STEPS}", self._steps)
        self._store.put(f"{folder}/{EPISODES}", self._listed())
        self._store.put(f"{folder}/{EPISODES_STATISTICS}", _stream(pa.table({"": self._statistics})))
        return {
            "part": self._part,
            "episodes": len(self._episodes),
            "tasks": list(self._tasks),
            "films": films,
            "shapes": self._shapes,
            "pictures": {name: counts.to_json() for name, counts in self._pictures.items() if counts.frames},
        }

    def _listed(self) -> bytes:
        texts = pa.array([json.dumps(one) for one in self._episodes], pa.string())
        names = list(self._sink.plan.episode)
        known = pa.Table.from_batches(self._known) if names else pa.table({})
        table = known.append_column("", texts) if names else pa.table({"": texts})
        return _stream(table)

    def _row(self, batch: pa.RecordBatch, row: int) -> None:
        key = self._sink.schema.id
        name = batch.column(key)[row].as_py() if key is not None else f"row {row} of its batch"
        where = f"Sequence {name!r}"
        steps, lengths = self._stepped(batch, row, where)
        count = self._length(lengths or self._filmed_length(batch, row, where), where)
        places, statistics = self._pictured(batch, row, count, where, steps)
        for feature, one in steps.items():
            if one.values is not None:
                statistics[feature] = counting.of_numbers(one.values)
        tasks = self._tasks_of(batch, row, count, where)
        times = self._times(batch, row, count)
        counted = {
            TIMESTAMP: pa.array(times, pa.float32()),
            "frame_index": pa.array(np.arange(count), pa.int64()),
            TASK_INDEX: pa.array([self._tasks.setdefault(task, len(self._tasks)) for task in tasks], pa.int64()),
        }
        statistics[TIMESTAMP] = counting.of_numbers(times)
        statistics["frame_index"] = counting.of_numbers(np.arange(count))
        cells = {name: one.cells for name, one in steps.items()} | counted
        self._writer.write_table(pa.table([cells[one] for one in self._schema.names], schema=self._schema), count)
        self._episodes.append(
            {
                ID: name if key is not None else None,
                "number": self._number(batch, row),
                "split": self._plain(batch, row, SPLIT),
                ROBOT: self._plain(batch, row, ROBOT),
                "length": count,
                "tasks": self._in_order(batch, row, tasks),
                "videos": {name: [place.file, place.first] for name, place in places.items()},
            }
        )
        self._statistics.append(json.dumps({name: counting.plain(one, one) for name, one in statistics.items()}))

    def _stepped(self, batch: pa.RecordBatch, row: int, where: str) -> tuple[dict[str, FeatureSteps], dict[str, int]]:
        """Features of numbers and texts, and the lengths of all whose cells say theirs."""
        steps, lengths = {}, {}
        for feature in self._sink.plan.features:
            cell, at = batch.column(feature.column)[row], f"{where}, column {feature.column!r}"
            if feature.role == "image":
                lengths[feature.column] = len(cell.values) if cell.is_valid else 0
            elif feature.role != "video":
                steps[feature.name] = steps_of(feature, cell, self._types[feature.name], at)
                lengths[feature.column] = len(steps[feature.name].cells)
            elif (span := place_of(cell.as_py())) is not None and span.count is not None:
                lengths[feature.column] = span.count
        return steps, lengths

    def _filmed_length(self, batch: pa.RecordBatch, row: int, where: str) -> dict[str, int]:
        """Of a sequence of videos alone: the frames of the first."""
        feature = self._sink.plan.features[0]
        source = self._video(feature, batch.column(feature.column)[row], f"{where}, column {feature.column!r}")
        return {feature.column: len(open_video(source))}

    def _length(self, lengths: Mapping[str, int], where: str) -> int:
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            raise ValidationError(
                f"{where}: all features of an episode have as many steps: {said}.",
                hint="Bring them to one length with sl.trim or sl.resample, or leave columns out: without=[...].",
            )
        count = next(iter(lengths.values()), 0)
        if not count:
            raise ValidationError(
                f"{where} has no steps, and LeRobot has no empty episodes.",
                hint="Leave such rows out with where().",
            )
        return count

    def _pictured(
        self, batch: pa.RecordBatch, row: int, count: int, where: str, steps: dict[str, FeatureSteps]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Cameras: where their frames are, and statistics; images that stay images go into `steps`."""
        places, statistics = {}, {}
        for feature in self._sink.plan.features:
            cell, at = batch.column(feature.column)[row], f"{where}, column {feature.column!r}"
            counts: PictureCounts | None
            if feature.role == "video":
                source = self._video(feature, cell, at)
                try:
                    places[feature.name], counts = self._films[feature.name].add(source, count, at)
                except (CorruptFileError, DecodeError) as error:
                    raise ValidationError(f"{at}: {error}") from error
            elif feature.role == "image":
                kind = self._sink.schema[feature.column].type
                assert kind is not None
                pictures = PictureSteps(cell, kind, at, opened=self._opened)
                if feature.name in self._films:
                    film = self._films[feature.name]
                    places[feature.name], counts = film.add_pictures(pictures.eight_bits(), at)
                else:
                    steps[feature.name] = pictures.stored()
                    counts, shape = pictures.counted(self._sink.looked_at)
                    if self._shapes.setdefault(feature.name, shape)[:2] != shape[:2]:
                        raise ValidationError(
                            f"{at}: pictures of {shape[1]}x{shape[0]}, and those of others have another size.",
                            hint="A feature of LeRobot has one size: leave such rows out, or the column.",
                        )
            else:
                continue
            if counts is not None:
                statistics[feature.name] = counts.statistics()
                try:
                    self._pictures.setdefault(feature.name, PictureCounts(metres=counts.metres)).join(counts)
                except ValueError as error:
                    raise ValidationError(f"{at}: the episodes have {error}.") from error
        return places, statistics

    def _video(self, feature: ExportedFeature, cell: pa.Scalar, where: str) -> Source:
        span = place_of(cell.as_py())
        if span is None:
            raise ValidationError(
                f"{where}: there is no video, and LeRobot has every camera in every episode.",
                hint="Leave such rows out with where(), or the column with without=.",
            )
        kind = self._sink.schema[feature.column].type
        assert kind is not None
        try:
            blob: Blob = self._opened(span.reference) if span.data is None else inline_blob(span.data, span.reference)
        except (FileNotFoundError, MissingFileError) as error:
            raise ValidationError(
                f"{where}: the file {span.reference!r} is not there.",
                hint="Run validate(depth='files') to list all that are missing; leave the rows or the column out.",
            ) from error
        return Source(blob=blob, column=kind, first=span.first, count=span.count)

    def _tasks_of(self, batch: pa.RecordBatch, row: int, count: int, where: str) -> list[str]:
        texts = self._sink.texts
        cells = {name: batch.column(name)[row].as_py() for name in texts.columns}
        numbers = None
        if texts.numbered and batch.column(TASK_INDEX)[row].is_valid:
            numbers = batch.column(TASK_INDEX)[row].values.to_numpy(zero_copy_only=False)
        return texts.per_step(cells, numbers, count, where)

    def _in_order(self, batch: pa.RecordBatch, row: int, tasks: Sequence[str]) -> list[str]:
        """The tasks of an episode: those that it listed, in that order, and those of its steps."""
        renamed = self._sink.texts.renamed
        listed = [self._plain(batch, row, name) for name in self._sink.texts.columns]
        known = [renamed.get(one, one) for some in listed if isinstance(some, list) for one in some]
        return list(dict.fromkeys([*known, *tasks]))

    def _times(self, batch: pa.RecordBatch, row: int, count: int) -> Any:
        """[T] seconds: as they were, where they are those of a constant rate."""
        exact = np.arange(count) / float(self._sink.plan.rate)
        if TIMESTAMP in self._sink.schema and self._sink.plan.source:
            cell = batch.column(TIMESTAMP)[row]
            were = cell.values.to_numpy(zero_copy_only=False) if cell.is_valid else np.zeros(0)
            if were.dtype == np.float32 and len(were) == count and np.abs(were - exact).max() < _TOLERANCE:
                return were
        return exact.astype(np.float32)

    def _number(self, batch: pa.RecordBatch, row: int) -> int | None:
        number = self._plain(batch, row, EPISODE)
        return number if isinstance(number, int) else None

    def _plain(self, batch: pa.RecordBatch, row: int, name: str) -> Any:
        return batch.column(name)[row].as_py() if name in batch.schema.names else None


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _kind(schema: Schema, feature: ExportedFeature) -> Any:
    kind = schema[feature.column].type
    assert kind is not None  # a medium has one
    return kind
