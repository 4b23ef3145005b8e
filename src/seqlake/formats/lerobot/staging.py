"""What parts leave for the commit of a LeRobot folder, by which names, and what the folder is to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqlake.files.appearing import STAGED

STEPS = "steps.parquet"
EPISODES = "episodes.arrow"
EPISODES_STATISTICS = "statistics.arrow"


def part_folder(part: int, /) -> str:
    """The folder of a part.

    Example:
        >>> part_folder(3)
        '.seqlake_parts/00003'
    """
    return f"{STAGED}/{part:05d}"


def films_folder(part: int, feature: int, /) -> str:
    """The folder of the videos of a feature, by its place.

    Example:
        >>> films_folder(3, 0)
        '.seqlake_parts/00003/camera-000'
    """
    return f"{part_folder(part)}/camera-{feature:03d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSettings:
    """What a folder is to be; picklable.

    Attributes:
        version: `v3.0` or `v2.1`.
        chunks_size: Files of a chunk (v3.0), or episodes (v2.1).
        data_mb: MB at which a data file is full (v3.0).
        video_mb: MB at which a video is full (v3.0).
    """

    version: str
    chunks_size: int
    data_mb: float
    video_mb: float

    @property
    def shared(self) -> bool:
        """Whether files hold many episodes."""
        return self.version != "v2.1"


@dataclass(slots=True, kw_only=True, eq=False)
class StagedEpisode:
    """One episode of a part.

    Attributes:
        part: Place of its part among the receipts.
        group: Its row group there.
        said: What was staged of it.
        number: Its number in the folder.
        start: The number of its first step.
        row: What the list of episodes has of it.
    """

    part: int
    group: int
    said: dict[str, Any]
    number: int = 0
    start: int = 0
    row: dict[str, Any]
