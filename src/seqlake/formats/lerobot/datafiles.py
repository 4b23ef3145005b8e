"""Data files of a LeRobot folder: staged steps get their numbers, and files end where they are full."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.files.stores import read_all
from seqlake.formats.lerobot import counting
from seqlake.formats.lerobot.describing import hub_features
from seqlake.formats.lerobot.layout import STATISTICS, VERSIONS, fill
from seqlake.formats.lerobot.stepping import step_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from seqlake.formats.lerobot.planning import ExportPlan
    from seqlake.formats.lerobot.staging import FolderSettings, StagedEpisode
    from seqlake.protocols import Store
    from seqlake.spec.schema import Schema

_MB = 1 << 20


def data_schema(plan: ExportPlan, schema: Schema, features: Mapping[str, Any], /) -> pa.Schema:
    """The columns of data files, in the order of the features.

    Args:
        plan: What became of the columns.
        schema: The schema of the rows.
        features: Those of `info.json`.
    """
    by_name = {feature.name: feature for feature in plan.features}
    fields = []
    for name, feature in features.items():
        if feature["dtype"] == "video":
            continue
        if name in by_name:
            fields.append(pa.field(name, step_type(by_name[name], schema[by_name[name].column].logical)))
        else:
            fields.append(pa.field(name, pa.from_numpy_dtype(np.dtype(feature["dtype"]))))
    described = {} if any(one["dtype"] == "language" for one in features.values()) else hub_features(features)
    metadata = {"huggingface": json.dumps({"info": {"features": described}})} if described else None
    return pa.schema(fields, metadata=metadata)


class DataFileWriter:
    """The data files of a folder, being written.

    Args:
        store: Of the folder.
        plan: What became of the columns.
        folder: What it is to be.
        schema: What `data_schema` gave.
    """

    def __init__(self, store: Store, plan: ExportPlan, folder: FolderSettings, schema: pa.Schema, /) -> None:
        self._store = store
        self._plan = plan
        self._folder = folder
        self._schema = schema
        self._paths: list[str] = []
        self._writer: pq.ParquetWriter | None = None
        self._sink: pa.NativeFile | None = None
        self._here = Path()
        self._steps = 0
        self._staged: tuple[str, pq.ParquetFile] | None = None

    def add(self, episode: StagedEpisode, staged: str, tasks: NDArray[np.int64], /) -> None:
        """Write one episode.

        Args:
            episode: Numbered; where its steps lie is added to its row.
            staged: The file that has its steps.
            tasks: The number of each task of its part.
        """
        table = self._opened(staged).read_row_group(episode.group)
        count = len(table)
        task = tasks[table["task_index"].to_numpy()]
        episode.row["task_index"] = counting.plain(counting.of_numbers(task), STATISTICS)
        counted = {
            "episode_index": np.full(count, episode.number, np.int64),
            "index": np.arange(episode.start, episode.start + count),
            "task_index": task,
        }
        columns = [
            pa.array(counted[field.name], field.type) if field.name in counted else table[field.name].cast(field.type)
            for field in self._schema
        ]
        if self._full(count):
            self._end()
        if self._writer is None:
            self._begin(episode)
        assert self._writer is not None
        self._writer.write_table(pa.table(columns, schema=self._schema), max(count, 1))
        self._steps += count
        episode.row["data"] = self._place(episode)

    def close(self) -> list[str]:
        """Finish the last file.

        Returns:
            The names of all.
        """
        self._end()
        if self._staged is not None:
            self._staged[1].close()
        return self._paths

    def column(self, name: str, shape: tuple[int, ...], /) -> NDArray[Any]:
        """[all steps, ...] of a feature of numbers, out of the files as they are now."""
        parts = []
        for path in self._paths:
            with self._file(path) as file:
                for values in file.read(columns=[name]).column(0).chunks:
                    flat = values
                    while pa.types.is_nested(flat.type):
                        flat = flat.flatten()
                    parts.append(flat.to_numpy(zero_copy_only=False))
        every = np.concatenate(parts) if parts else np.zeros(0)
        return every.reshape(-1, *shape)

    def _opened(self, staged: str) -> pq.ParquetFile:
        if self._staged is None or self._staged[0] != staged:
            if self._staged is not None:
                self._staged[1].close()
            self._staged = (staged, self._file(staged))
        return self._staged[1]

    def _file(self, path: str) -> pq.ParquetFile:
        here = self._store.local(path)
        if here is not None:
            return pq.ParquetFile(here, memory_map=True)
        return pq.ParquetFile(pa.BufferReader(read_all(self._store.blob(path))))

    def _full(self, count: int) -> bool:
        if self._sink is None:
            return False
        if not self._folder.shared:
            return True
        written = self._sink.tell()
        return bool(written + written / max(self._steps, 1) * count >= self._folder.data_mb * _MB)

    def _place(self, episode: StagedEpisode) -> tuple[int, int]:
        number = len(self._paths) - 1 if self._folder.shared else episode.number
        return divmod(number, self._folder.chunks_size)

    def _begin(self, episode: StagedEpisode) -> None:
        number = len(self._paths) if self._folder.shared else episode.number
        chunk, file = divmod(number, self._folder.chunks_size)
        values: dict[str, int | str] = {"chunk_index": chunk, "file_index": file}
        if not self._folder.shared:
            values = {"episode_chunk": chunk, "episode_index": episode.number}
        path = fill(VERSIONS[self._folder.version].data, values, what="the name of a data file")
        self._paths.append(path)
        self._here = self._store.local(path) or Path(tempfile.mkdtemp(prefix="seqlake-lerobot-")) / "data.parquet"
        self._here.unlink(missing_ok=True)
        self._sink = pa.OSFile(str(self._here), "wb")
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="snappy", use_dictionary=True)
        self._steps = 0

    def _end(self) -> None:
        if self._writer is None or self._sink is None:
            return
        self._writer.close()
        self._sink.close()
        path = self._paths[-1]
        self._store.put(path, self._here)
        if self._store.local(path) is None:
            self._here.unlink()
            with suppress(OSError):
                self._here.parent.rmdir()
        self._writer, self._sink = None, None
