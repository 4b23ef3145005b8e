"""Makes a LeRobot folder of staged parts: numbers that count over all of them, tasks, splits, statistics, names."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.errors import ValidationError
from seqlake.files.stores import read_all
from seqlake.formats.lerobot import counting
from seqlake.formats.lerobot.columns import ROBOT
from seqlake.formats.lerobot.counting import OLDER, PictureCounts
from seqlake.formats.lerobot.datafiles import DataFileWriter, data_schema
from seqlake.formats.lerobot.describing import described
from seqlake.formats.lerobot.layout import (
    EPISODES_JSONL,
    EPISODES_PATH,
    EPISODES_STATS_JSONL,
    INFO,
    OWN,
    STATISTICS,
    STATS,
    TASKS,
    TASKS_JSONL,
    VERSIONS,
    episode_id,
    fill,
)
from seqlake.formats.lerobot.staging import (
    EPISODES,
    EPISODES_STATISTICS,
    STEPS,
    FolderSettings,
    StagedEpisode,
    films_folder,
    part_folder,
)
from seqlake.spec.schema import ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from seqlake.formats.lerobot.planning import ExportedFeature, ExportPlan
    from seqlake.protocols import Store
    from seqlake.spec.schema import Schema

_log = logging.getLogger(__name__)
_MB = 1 << 20
_OF_NUMBERS = re.compile(r"episode_\d{6,}|")
_GROUP = 1000  # rows of a group in the list of episodes


class Assembly:
    """The commit of a folder; run again after an interruption, it ends in the same.

    Args:
        store: Of the folder.
        plan: What became of the columns.
        folder: What it is to be.
        schema: The schema of the rows.
        receipts: Of all parts, in order.
    """

    def __init__(
        self,
        store: Store,
        plan: ExportPlan,
        folder: FolderSettings,
        schema: Schema,
        receipts: Sequence[Mapping[str, Any]],
        /,
    ) -> None:
        self._store = store
        self._plan = plan
        self._folder = folder
        self._schema = schema
        self._receipts = receipts
        self._statistics_of_parts: list[pa.ChunkedArray] = []
        self._paths: list[str] = []

    def run(self) -> None:
        """Write everything; `meta/info.json` last."""
        episodes, more = self._listed()
        splits = self._in_order(episodes)
        tasks, numbers = self._tasks(episodes)
        self._check_sizes()
        self._move_films(episodes)
        features = described(self._plan, self._receipts)
        files = DataFileWriter(self._store, self._plan, self._folder, data_schema(self._plan, self._schema, features))
        for episode in episodes:
            part = self._receipts[episode.part]["part"]
            files.add(episode, f"{part_folder(part)}/{STEPS}", numbers[episode.part])
        self._paths += files.close()
        statistics = self._statistics(files, features)
        self._write_tasks(tasks)
        if self._folder.shared:
            self._write_episodes(episodes, more)
            self._put_json(STATS, {name: counting.plain(one, STATISTICS) for name, one in statistics.items()})
        else:
            self._write_lines(episodes, more)
        self._store.sync("", "meta", *_folders_of(self._paths))
        self._put_json(INFO, self._info(episodes, tasks, splits, features))
        self._store.sync("", "meta")

    def _put_json(self, path: str, value: Any) -> None:
        self._store.put(path, json.dumps(value, indent=4, ensure_ascii=False).encode())

    def _listed(self) -> tuple[list[StagedEpisode], pa.Table]:
        """All episodes as they were staged, and their own columns, row by row."""
        episodes, tables = list[StagedEpisode](), []
        for place, receipt in enumerate(self._receipts):
            folder = part_folder(receipt["part"])
            table, statistics = (self._staged(f"{folder}/{name}") for name in (EPISODES, EPISODES_STATISTICS))
            tables.append(table)
            self._statistics_of_parts.append(statistics.column(0))  # texts until they are written: they are large
            episodes.extend(
                StagedEpisode(part=place, group=group, said=json.loads(text), row={})
                for group, text in enumerate(table[""].to_pylist())
            )
        return episodes, pa.concat_tables(tables) if tables else pa.table({"": pa.array([], pa.string())})

    def _staged(self, path: str) -> pa.Table:
        with pa.ipc.open_stream(read_all(self._store.blob(path))) as stream:
            return stream.read_all()

    def _in_order(self, episodes: list[StagedEpisode]) -> dict[str, str]:
        """Number the episodes: in the order of their old numbers where those are all of 0 to N - 1, and by split.

        Returns:
            The ranges of the splits, as `info.json` has them.
        """
        for place, episode in enumerate(episodes):
            episode.row["place"] = place
        numbers = [episode.said["number"] for episode in episodes]
        if sorted(-1 if one is None else one for one in numbers) == list(range(len(episodes))):
            episodes.sort(key=lambda episode: episode.said["number"])
        elif any(one is not None for one in numbers):
            _log.info("Episodes are numbered anew, from 0 to %d.", len(episodes) - 1)
        named = [episode.said["split"] for episode in episodes]
        runs = [one for place, one in enumerate(named) if not place or named[place - 1] != one]
        if len(runs) != len(set(runs)):
            order = [one for one in dict.fromkeys(named) if one is not None]
            _log.warning(
                "Episodes of one split lie together in a LeRobot folder: they are ordered by %s.", ", ".join(order)
            )
            episodes.sort(key=lambda e: order.index(e.said["split"]) if e.said["split"] is not None else len(order))
        start = 0
        for number, episode in enumerate(episodes):
            episode.number, episode.start = number, start
            start += episode.said["length"]
        named = [episode.said["split"] for episode in episodes]
        counts = Counter(one for one in named if one is not None)
        if not counts:
            return {} if self._plan.source.get("splits") == {} else {"train": f"0:{len(episodes)}"}
        return {name: f"{named.index(name)}:{named.index(name) + count}" for name, count in counts.items()}

    def _check_sizes(self) -> None:
        """A feature has one shape.

        Raises:
            ValidationError: Pictures of one column have several sizes.
        """
        for feature in self._plan.features:
            films = [film for receipt in self._receipts for film in receipt["films"].get(feature.name, ())]
            sizes = {(film["width"], film["height"]) for film in films}
            shapes = [receipt["shapes"].get(feature.name) for receipt in self._receipts]
            sizes |= {(shape[1], shape[0]) for shape in shapes if shape is not None}
            if len(sizes) > 1:
                said = ", ".join(f"{width}x{height}" for width, height in sorted(sizes))
                raise ValidationError(
                    f"Column {feature.column!r} has pictures of {said}, and a feature of LeRobot has one size.",
                    hint="Write those of one size with where(), or leave the column out: without=[...].",
                )

    def _tasks(self, episodes: Sequence[StagedEpisode]) -> tuple[list[str], list[np.ndarray[Any, Any]]]:
        """All tasks by number, and for each part the number of each of its own.

        Those of the folder that the rows came from keep their order, and their numbers where all are still used.
        """
        used = {task for receipt in self._receipts for task in receipt["tasks"]}
        used |= {task for episode in episodes for task in episode.said["tasks"]}
        before = [self._plan.tasks[number] for number in sorted(self._plan.tasks)]
        new = (task for episode in episodes for task in episode.said["tasks"])
        every = (task for receipt in self._receipts for task in receipt["tasks"])
        tasks = list(dict.fromkeys([*(task for task in before if task in used), *new, *every]))
        place = {task: number for number, task in enumerate(tasks)}
        numbers = [np.array([place[task] for task in receipt["tasks"]], np.int64) for receipt in self._receipts]
        return tasks, numbers

    def _move_films(self, episodes: Sequence[StagedEpisode]) -> None:
        """Give videos their names, and say of each episode where its frames are."""
        template = VERSIONS[self._folder.version].video
        for place, feature in enumerate(self._plan.features):
            if not any(feature.name in receipt["films"] for receipt in self._receipts):
                continue
            names: dict[tuple[int, int], tuple[int, int]] = {}
            for episode in episodes:
                file, first = episode.said["videos"][feature.name]
                key = (episode.part, file)
                if key not in names:
                    number = episode.number if not self._folder.shared else len(names)
                    names[key] = divmod(number, self._folder.chunks_size)
                    staged = f"{films_folder(self._receipts[episode.part]['part'], place)}/{file:06d}.mp4"
                    path = self._film_path(template, feature, names[key], episode.number)
                    self._store.move(staged, path)
                    self._paths.append(path)
                self._say_where(episode, feature, names[key], first)

    def _film_path(self, template: str, feature: ExportedFeature, place: tuple[int, int], episode: int) -> str:
        values: dict[str, int | str] = {"video_key": feature.name, "chunk_index": place[0], "file_index": place[1]}
        if not self._folder.shared:
            values = {"video_key": feature.name, "episode_chunk": place[0], "episode_index": episode}
        return fill(template, values, what="the name of a video")

    def _say_where(self, episode: StagedEpisode, feature: ExportedFeature, place: tuple[int, int], first: int) -> None:
        rate = self._plan.rate
        length = episode.said["length"]
        episode.row |= {
            f"videos/{feature.name}/chunk_index": place[0],
            f"videos/{feature.name}/file_index": place[1],
            f"videos/{feature.name}/from_timestamp": float(first / rate),
            f"videos/{feature.name}/to_timestamp": float((first + length) / rate),
        }

    def _statistics(self, files: DataFileWriter, features: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Of all episodes: numbers from what was written, pictures from what parts counted."""
        counted: dict[str, PictureCounts] = {}
        for receipt in self._receipts:
            for name, value in receipt["pictures"].items():
                one = PictureCounts.from_json(value)
                counted.setdefault(name, PictureCounts(metres=one.metres)).join(one)
        statistics = {}
        for name, feature in features.items():
            if name in counted:
                statistics[name] = counted[name].statistics()
            elif feature["dtype"] not in {"string", "language", "image", "video"}:
                statistics[name] = counting.of_numbers(files.column(name, tuple(feature["shape"])))
        return statistics

    def _write_tasks(self, tasks: Sequence[str]) -> None:
        if not self._folder.shared:
            self._put_lines(TASKS_JSONL, ({"task_index": number, "task": task} for number, task in enumerate(tasks)))
            return
        # The index of a pandas frame, so that pandas and what builds on it find it again as one.
        kinds = {"task_index": ("int64", "int64"), "task": ("object", "unicode")}
        columns = [
            {"field_name": name, "name": name, "metadata": None, "numpy_type": stored, "pandas_type": kind}
            for name, (stored, kind) in kinds.items()
        ]
        pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
        table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
        table = table.replace_schema_metadata({"pandas": json.dumps(pandas)})
        self._put_parquet(TASKS, [table])

    def _put_parquet(self, path: str, tables: Sequence[pa.Table]) -> None:
        out = BytesIO()
        with pq.ParquetWriter(out, tables[0].schema, compression="snappy") as writer:
            for table in tables:
                writer.write_table(table)
        self._store.put(path, out.getvalue())
        self._paths.append(path)

    def _write_episodes(self, episodes: Sequence[StagedEpisode], more: pa.Table) -> None:
        """`meta/episodes`, group after group, in files of about the size of data files."""
        limit = self._folder.data_mb * _MB
        known = self._known(episodes, more)
        first = self._episodes_table(episodes[:1], known)
        group = max(1, min(_GROUP, int(limit // max(first.nbytes, 1))))
        held, nbytes, file = list[pa.Table](), 0, 0
        for begin in range(0, len(episodes), group):
            table = self._episodes_table(episodes[begin : begin + group], known.slice(begin, group), first.schema)
            if held and nbytes + table.nbytes > limit:
                self._put_episodes(held, file)
                held, nbytes, file = [], 0, file + 1
            held.append(table)
            nbytes += table.nbytes
        self._put_episodes(held, file)

    def _put_episodes(self, tables: Sequence[pa.Table], file: int) -> None:
        values = dict(zip(("chunk_index", "file_index"), divmod(file, self._folder.chunks_size), strict=True))
        placed = []
        for table in tables:
            some = table
            for name, value in values.items():
                some = some.append_column(f"meta/episodes/{name}", pa.array([value] * len(some), pa.int64()))
            placed.append(some)
        self._put_parquet(fill(EPISODES_PATH, values, what="the name of a list of episodes"), placed)

    def _known(self, episodes: Sequence[StagedEpisode], more: pa.Table) -> pa.Table:
        """The columns of the rows that say something of whole episodes, in the order of the episodes."""
        taken = more.take(pa.array([episode.row["place"] for episode in episodes], pa.int64()))
        columns = {name: _plain_column(taken[name]) for name in self._plan.episode}
        if self._has_ids(episodes):
            columns[ID] = pa.chunked_array([pa.array([episode.said[ID] for episode in episodes], pa.string())])
        if self._several_robots(episodes):
            columns[ROBOT] = pa.chunked_array([pa.array([episode.said[ROBOT] for episode in episodes], pa.string())])
        count = pa.chunked_array([pa.array(range(len(episodes)), pa.int64())])  # a table without columns has no rows
        return pa.table({**columns, "": count})

    def _episodes_table(
        self, episodes: Sequence[StagedEpisode], known: pa.Table, schema: pa.Schema | None = None
    ) -> pa.Table:
        rows = [self._episode_row(episode) for episode in episodes]
        names = [name for name in known.column_names if name]
        own_schema = _episodes_schema(rows) if schema is None else pa.schema([f for f in schema if f.name not in names])
        table = pa.Table.from_pylist(rows, schema=own_schema)
        for name in names:
            table = table.append_column(known.schema.field(name), known[name].slice(0, len(rows)))
        return table

    def _has_ids(self, episodes: Sequence[StagedEpisode]) -> bool:
        """Whether sequences have ids that are not made of numbers of episodes, which may be others now."""
        if self._plan.source:
            return any(not _OF_NUMBERS.fullmatch(episode.said[ID] or "") for episode in episodes)
        return any(episode.said[ID] not in {None, episode_id(episode.number)} for episode in episodes)

    def _several_robots(self, episodes: Sequence[StagedEpisode]) -> bool:
        return len({episode.said[ROBOT] for episode in episodes}) > 1

    def _episode_row(self, episode: StagedEpisode) -> dict[str, Any]:
        length = episode.said["length"]
        row = {
            "episode_index": episode.number,
            "tasks": episode.said["tasks"],
            "length": length,
            "data/chunk_index": episode.row["data"][0],
            "data/file_index": episode.row["data"][1],
            "dataset_from_index": episode.start,
            "dataset_to_index": episode.start + length,
            **{name: value for name, value in episode.row.items() if name.startswith("videos/")},
        }
        for feature, statistics in self._episode_statistics(episode).items():
            row |= {f"stats/{feature}/{name}": statistics[name] for name in STATISTICS}
        return row

    def _episode_statistics(self, episode: StagedEpisode) -> dict[str, dict[str, Any]]:
        counted = {
            "episode_index": np.full(episode.said["length"], episode.number),
            "index": np.arange(episode.start, episode.start + episode.said["length"]),
        }
        more = {name: counting.plain(counting.of_numbers(values), STATISTICS) for name, values in counted.items()}
        staged = json.loads(self._statistics_of_parts[episode.part][episode.group].as_py())
        return {**staged, **more, "task_index": episode.row["task_index"]}

    def _write_lines(self, episodes: Sequence[StagedEpisode], more: pa.Table) -> None:
        """`episodes.jsonl` and `episodes_stats.jsonl` of v2.1."""
        own_rows = more.select(list(self._plan.episode)).to_pylist() if self._plan.episode else [{}] * len(episodes)
        robots, ids = self._several_robots(episodes), self._has_ids(episodes)

        def listed(episode: StagedEpisode) -> dict[str, Any]:
            known = {name: _json_value(value) for name, value in own_rows[episode.row["place"]].items()}
            line = {"episode_index": episode.number, "tasks": episode.said["tasks"], "length": episode.said["length"]}
            if ids:
                known[ID] = episode.said[ID]
            return {**line, **known, **({ROBOT: episode.said[ROBOT]} if robots else {})}

        def counted(episode: StagedEpisode) -> dict[str, Any]:
            every = self._episode_statistics(episode)
            stats = {name: {key: one[key] for key in OLDER} for name, one in every.items()}
            return {"episode_index": episode.number, "stats": stats}

        self._put_lines(EPISODES_JSONL, map(listed, episodes))
        self._put_lines(EPISODES_STATS_JSONL, map(counted, episodes))

    def _put_lines(self, path: str, lines: Iterable[Mapping[str, Any]]) -> None:
        self._store.put(path, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode())

    def _info(
        self,
        episodes: Sequence[StagedEpisode],
        tasks: Sequence[str],
        splits: Mapping[str, str],
        features: Mapping[str, Any],
    ) -> dict[str, Any]:
        rate, templates = self._plan.rate, VERSIONS[self._folder.version]
        cameras = [name for name, feature in features.items() if feature["dtype"] == "video"]
        robots = {episode.said[ROBOT] for episode in episodes}
        robot = robots.pop() if len(robots) == 1 else None
        info: dict[str, Any] = {
            "codebase_version": self._folder.version,
            "robot_type": robot,
            "total_episodes": len(episodes),
            "total_frames": sum(episode.said["length"] for episode in episodes),
            "total_tasks": len(tasks),
            "chunks_size": self._folder.chunks_size,
            "fps": int(rate) if rate.denominator == 1 else float(rate),
            "splits": dict(splits),
            "data_path": templates.data,
            "video_path": templates.video if cameras else None,
            "features": features,
        }
        if self._folder.shared:
            info |= {"data_files_size_in_mb": self._folder.data_mb, "video_files_size_in_mb": self._folder.video_mb}
        else:
            chunks = -(-len(episodes) // self._folder.chunks_size)
            info |= {"total_videos": len(cameras) * len(episodes), "total_chunks": chunks}
        types = {name: self._schema[name].type for name in self._plan.episode}
        if meant := {name: kind.to_json() for name, kind in types.items() if kind is not None}:
            info[OWN] = {"column_types": meant}
        of_versions = {*info, *_OF_VERSIONS, OWN}
        return {**info, **{key: value for key, value in self._plan.source.items() if key not in of_versions}}


_OF_VERSIONS = ("total_videos", "total_chunks", "data_files_size_in_mb", "video_files_size_in_mb", "storage_format")


def _episodes_schema(rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Types of the list of episodes; statistics are floating-point numbers, in the shape of a step, counts whole."""
    fields = []
    for name in dict.fromkeys(name for row in rows for name in row):
        value = next(row[name] for row in rows if name in row)
        if name == "tasks":
            kind = pa.list_(pa.string())
        elif name.startswith("stats/"):
            kind = pa.int64() if name.endswith("/count") else pa.float64()
            while isinstance(value, list):
                value, kind = (value[0] if value else None), pa.list_(kind)
        else:
            kind = pa.float64() if name.endswith("_timestamp") else pa.int64()
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _folders_of(paths: Iterable[str]) -> list[str]:
    """All folders that paths lie in, those of the folders among them."""
    folders = set[str]()
    for path in paths:
        parts = path.split("/")[:-1]
        folders |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
    return sorted(folders)


def _plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _json_value(value: Any) -> Any:
    plain = value is None or isinstance(value, (bool, int, float, str, list))
    return value if plain else value.isoformat() if hasattr(value, "isoformat") else str(value)
