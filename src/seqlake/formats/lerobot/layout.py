"""Where the files of a LeRobot folder lie, in each of its versions; and paths made of templates of strangers."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqlake.errors import InvalidMetadataError, UnsafeReferenceError
from seqlake.files.locations import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

INFO = "meta/info.json"
OWN = "seqlake"
"""A key of `info.json`, which others pass over: `column_types` of columns in the list of episodes."""

STATS = "meta/stats.json"
"""Of the whole dataset; v2.0 and v3.0."""

TASKS, SUBTASKS = "meta/tasks.parquet", "meta/subtasks.parquet"
EPISODES = "meta/episodes"
"""The folder of files with one row an episode, of v3.0."""

TASKS_JSONL = "meta/tasks.jsonl"
EPISODES_JSONL = "meta/episodes.jsonl"
EPISODES_STATS_JSONL = "meta/episodes_stats.jsonl"
"""By episode; v2.1."""

CHUNK_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
EPISODES_PATH = f"{EPISODES}/{CHUNK_FILE}.parquet"
CHUNKS_SIZE = 1000
"""Files of a chunk (v3.0), or episodes (v2.x)."""

DATA_FILE_MB, VIDEO_FILE_MB = 100, 200
"""At which a file of v3.0 is full."""

STATISTICS = ("min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99")
"""What v3.0 keeps of a feature; v2.x keeps the first five."""

BOOKKEEPING = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
"""The features that every dataset has, each one number a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """Where a version puts its files, unless `info.json` says otherwise.

    Attributes:
        data: Signals.
        video: Videos.
    """

    data: str
    video: str


_BY_EPISODE = Templates(
    data="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    video="videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
)
VERSIONS = {
    "v2.0": _BY_EPISODE,
    "v2.1": _BY_EPISODE,
    "v3.0": Templates(data=f"data/{CHUNK_FILE}.parquet", video=f"videos/{{video_key}}/{CHUNK_FILE}.mp4"),
}
"""The versions that are known, and where each puts its files."""

SCALAR = "scalar"
"""In `info` of a feature of shape [1]: steps of its column are numbers, not lists of one."""

OLDEST_SHARED = 3
"""From this version on files hold many episodes."""

_WIDEST = 9  # digits of a number in a name


def fill(template: str, values: Mapping[str, int | str], /, *, what: str) -> str:
    """A path below the root, out of a template and its values; both may come from strangers.

    Python's own `str.format` would follow attributes and pad to any width, so nothing but names and a width of digits
    is taken.

    Args:
        template: As in `data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet`.
        values: What its names mean.
        what: Where it stands, for messages.

    Raises:
        InvalidMetadataError: It names anything else, or cannot be understood.
        UnsafeReferenceError: The path leaves the root.

    Example:
        >>> fill("videos/{video_key}/{file_index:03d}.mp4", {"video_key": "cam", "file_index": 7}, what="video_path")
        'videos/cam/007.mp4'
    """
    try:
        path = "".join(
            text + _value(name, spec, conversion, values) for text, name, spec, conversion in _parsed(template)
        )
    except (ValueError, KeyError) as error:
        raise InvalidMetadataError(
            f"{what}: expected a template of {', '.join(values)}, as {VERSIONS['v3.0'].data!r}, found {template!r}: "
            f"{error.args[0] if error.args else error}."
        ) from None
    try:
        return checked(path)
    except UnsafeReferenceError as error:
        raise UnsafeReferenceError(f"{what}: {error.message}", path=path) from None


def _parsed(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    return list(string.Formatter().parse(template))


def _value(name: str | None, spec: str | None, conversion: str | None, values: Mapping[str, int | str]) -> str:
    if name is None:
        return ""
    if name not in values or conversion is not None:
        raise ValueError(f"{name!r} is none of them")
    value, width = values[name], (spec or "").removesuffix("d")
    if isinstance(value, str):
        if spec:
            raise ValueError(f"{spec!r} is no way to write a name")
        return value
    if width and not (width.isascii() and width.isdigit() and int(width) <= _WIDEST):
        raise ValueError(f"{spec!r} is no width of a number")
    return f"{value:{width}d}"


def episode_id(number: int, /) -> str:
    """The id of an episode's row, whose order is that of the numbers.

    Example:
        >>> episode_id(12)
        'episode_000012'
    """
    return f"episode_{number:06d}"
