"""Names of what parts leave for the commit of a LeRobot folder."""

from __future__ import annotations

STAGED = "_seqlake_parts"
STEPS = "steps.parquet"
EPISODES = "episodes.arrow"
EPISODES_STATISTICS = "statistics.arrow"


def part_folder(part: int, /) -> str:
    """The folder of a part.

    Example:
        >>> part_folder(3)
        '_seqlake_parts/00003'
    """
    return f"{STAGED}/{part:05d}"


def films_folder(part: int, feature: int, /) -> str:
    """The folder of the videos of a feature, by its place.

    Example:
        >>> films_folder(3, 0)
        '_seqlake_parts/00003/camera-000'
    """
    return f"{part_folder(part)}/camera-{feature:03d}"
