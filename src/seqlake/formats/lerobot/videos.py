"""Where the frames of each episode lie in the videos: names of files, and in shared ones the first frame.

A shared file is the episodes' own videos, one after another. `from_timestamp` is the sum of the durations that their
containers declared, which is no multiple of a frame and drifts. So frames are counted: an episode that begins where
the one before ended begins at that one's last frame plus one, however far its time has drifted. Only where a file has
a gap (frames of an episode that was deleted) is a time turned into a frame, by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.formats.lerobot.layout import episode_id, fill
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.formats.lerobot.episodes import Episodes
    from seqlake.formats.lerobot.metadata import Info
    from seqlake.protocols import Ints

    Reals = NDArray[np.float64]

CELL = pa.struct([("url", pa.string()), ("first_frame", pa.int64()), ("num_frames", pa.int64())])
"""The Arrow type of a video in a shared file."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoPlaces:
    """One camera.

    Attributes:
        column: Its column.
        paths: [episodes] the file of each, below the root; None where there is none.
        first: [episodes] its first frame there; 0 where a file has one episode.
        time: [episodes] when that frame is shown, in seconds, as the metadata say; NaN where they do not.
        findings: What is odd about them.
    """

    column: str
    paths: list[str | None]
    first: Ints
    time: Reals
    findings: list[Finding] = field(default_factory=list)

    def cells(self, lengths: Ints, /, *, shared: bool) -> pa.Array:
        """[episodes] what the column holds."""
        urls = pa.array(self.paths, pa.string())
        if not shared:
            return urls
        gone = pa.array([path is None for path in self.paths], pa.bool_())
        parts = [urls, pa.array(self.first, pa.int64()), pa.array(lengths, pa.int64())]
        return pa.StructArray.from_arrays(parts, fields=list(CELL), mask=gone)


def places(name: str, episodes: Episodes, info: Info, /, *, column: str) -> VideoPlaces:
    """Where a camera's frames lie.

    Args:
        name: The feature.
        episodes: All of them.
        info: Of the dataset.
        column: What the feature's column is called.

    Raises:
        InvalidMetadataError: The template, or a column of the episodes, cannot be used.
        UnsafeReferenceError: A path leaves the root.
    """
    if not info.shared:
        return _by_episode(name, episodes, info, column)
    chunk, file = (episodes.whole(f"videos/{name}/{one}_index") for one in ("chunk", "file"))
    start, stop = (episodes.real(f"videos/{name}/{one}_timestamp") for one in ("from", "to"))
    gone = (chunk < 0) | (file < 0) | ~np.isfinite(start) | (start < 0)
    result = VideoPlaces(
        column=column, paths=_paths(name, chunk, file, gone, info), first=np.zeros(len(episodes), np.int64), time=start
    )
    for row in np.flatnonzero(gone).tolist():
        text = "no file, or no time in it, is named for this episode: its cell is null"
        result.findings.append(_finding("lerobot-video-missing", "error", text, episodes, row, column))
    present = np.flatnonzero(~gone)
    order = present[np.lexsort((start[present], file[present], chunk[present]))]
    borders = np.flatnonzero((np.diff(chunk[order]) != 0) | (np.diff(file[order]) != 0)) + 1
    for rows in np.split(order, borders):
        if len(rows):
            _count(result, rows, (start, stop), episodes, info)
    return result


def _by_episode(name: str, episodes: Episodes, info: Info, column: str) -> VideoPlaces:
    paths: list[str | None] = [
        fill(
            info.video_path,
            {"video_key": name, "episode_index": number, "episode_chunk": number // info.chunks_size},
            what="video_path in meta/info.json",
        )
        for number in episodes.index.tolist()
    ]
    return VideoPlaces(
        column=column,
        paths=paths,
        first=np.zeros(len(paths), np.int64),
        time=np.full(len(paths), np.nan),
    )


def _paths(name: str, chunk: Ints, file: Ints, gone: NDArray[np.bool_], info: Info) -> list[str | None]:
    known: dict[tuple[int, int], str] = {}
    paths: list[str | None] = []
    for place, is_gone in zip(zip(chunk.tolist(), file.tolist(), strict=True), gone.tolist(), strict=True):
        if is_gone:
            paths.append(None)
            continue
        if place not in known:
            values = {"video_key": name, "chunk_index": place[0], "file_index": place[1]}
            known[place] = fill(info.video_path, values, what="video_path in meta/info.json")
        paths.append(known[place])
    return paths


def _count(places: VideoPlaces, rows: Ints, times: tuple[Reals, Reals], episodes: Episodes, info: Info) -> None:
    """Number the first frames of one file's episodes, in the order of their times."""
    start, stop = times
    half, drifted = 0.5 / info.fps, 0
    ahead, end = 0, 0.0  # the first free frame, and its time
    for row in rows.tolist():
        rounded = round(float(start[row]) * info.fps)
        apart = float(start[row]) - end
        if abs(apart) < half:
            places.first[row] = ahead
            drifted += rounded != ahead
        else:
            places.first[row] = rounded
            if apart < 0:
                text = f"begins at {start[row]:.6f} s of its file, where the episode before it lasts until {end:.6f} s"
                places.findings.append(_finding("lerobot-video-overlap", "error", text, episodes, row, places.column))
            else:
                text = f"{apart:.3f} s of its file before it belong to no episode; its first frame is {rounded}"
                places.findings.append(_finding("lerobot-video-gap", "note", text, episodes, row, places.column))
        length = int(episodes.length[row])
        end = float(stop[row]) if np.isfinite(stop[row]) else float(start[row]) + length / info.fps
        lasting = round((end - float(start[row])) * info.fps)  # of one episode, too short to drift by half a frame
        ahead = int(places.first[row]) + lasting
        if lasting != length:
            text = f"its time in the file is that of {lasting} frames, and it has {length}"
            places.findings.append(_finding("lerobot-video-length", "error", text, episodes, row, places.column))
    if drifted:
        text = f"from_timestamp has drifted by half a frame or more in {drifted} episodes; frames are counted instead"
        path = places.paths[int(rows[0])] or ""
        places.findings.append(
            Finding(code="lerobot-video-drift", severity="note", message=text, location=path, column=places.column)
        )


def _finding(code: str, severity: Any, text: str, episodes: Episodes, row: int, column: str) -> Finding:
    number = int(episodes.index[row])
    return Finding(code=code, severity=severity, message=text, sequence_id=episode_id(number), column=column)


def compared(places: VideoPlaces, path: str, times: Reals, episodes: Episodes, info: Info, /) -> Iterator[Finding]:
    """Findings where a file does not hold the frames that the metadata say.

    Args:
        places: Of one camera.
        path: The file.
        times: [frames] when each of its frames is shown, in seconds.
        episodes: All of them.
        info: Of the dataset.
    """
    half = 0.5 / info.fps
    for row in (row for row, one in enumerate(places.paths) if one == path):
        first, length = int(places.first[row]), int(episodes.length[row])
        if first + length > len(times):
            text = f"frames {first} to {first + length - 1} of {path} are meant, which has {len(times)}"
            yield _finding("lerobot-video-frames", "error", text, episodes, row, places.column)
        elif length and abs(times[first] - times[0] - places.time[row]) >= half:
            text = (
                f"frame {first} of {path} is shown at {times[first]:.4f} s, from_timestamp is {places.time[row]:.4f} s"
            )
            yield _finding("lerobot-video-time", "warning", text, episodes, row, places.column)
