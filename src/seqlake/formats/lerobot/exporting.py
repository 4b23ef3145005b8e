"""LeRobot as a target of conversions: what is asked for, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seqlake.arguments import NUMBER, TEXTS, Kind, takes
from seqlake.errors import SchemaMismatchError
from seqlake.files.locations import absolute
from seqlake.formats.lerobot.films import FilmSettings
from seqlake.formats.lerobot.layout import CHUNKS_SIZE, DATA_FILE_MB, VIDEO_FILE_MB
from seqlake.formats.lerobot.planning import dropped, planned
from seqlake.formats.lerobot.sink import LeRobotSink
from seqlake.formats.lerobot.staging import FolderSettings
from seqlake.formats.lerobot.tasks import TaskTexts
from seqlake.media import Encoding
from seqlake.spec.column_types import Depth
from seqlake.spec.depth import measure_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from fractions import Fraction

    from seqlake.formats.lerobot.planning import ExportedFeature, ExportPlan
    from seqlake.spec.schema import Schema

__all__ = ["create", "dropped", "takes_files"]

WRITTEN = ("v3.0", "v2.1")
_MB = 1 << 20
_NEW_TEXTS = Kind(
    "new texts by old ones",
    lambda value: value is None or (isinstance(value, Mapping) and TEXTS.fits([*value, *value.values()])),
)
_COLUMN = Kind("the name of a column", lambda value: value is None or isinstance(value, str))
_FORMS = Kind("bytes or video, or one of them by column", lambda value: isinstance(value, (str, Mapping)))
_ENCODING = Kind(
    "an Encoding, or one by column",
    lambda value: (
        value is None
        or isinstance(value, Encoding)
        or (isinstance(value, Mapping) and all(isinstance(one, Encoding) for one in value.values()))
    ),
)
_FARTHEST = 10.0  # metres: what LeRobot's own depth cameras are quantised to


def takes_files(schema: Schema, /) -> Collection[str]:
    """Columns whose files are taken along: all that have a place."""
    return [name for name in schema.names if name not in dropped(schema)]


@takes(without=TEXTS, tasks=_NEW_TEXTS, task_column=_COLUMN, depth_max=NUMBER, encoding=_ENCODING, images=_FORMS)
def create(
    location: str,
    schema: Schema,
    /,
    *,
    version: str = "v3.0",
    fps: float | Fraction | None = None,
    without: Collection[str] = (),
    images: str | Mapping[str, str] = "bytes",
    encoding: Encoding | Mapping[str, Encoding] | None = None,
    videos: str = "shared",
    files: str = "copy",
    depth_max: float = _FARTHEST,
    tasks: Mapping[str, str] | None = None,
    task_column: str | None = None,
    picture_statistics: str = "sampled",
    chunks_size: int | None = None,
    data_files_size_in_mb: float | None = None,
    video_files_size_in_mb: float | None = None,
    storage: Mapping[str, str] | None = None,
    source_storage: Mapping[str, str] | None = None,
) -> LeRobotSink:
    """Where `convert(..., to="lerobot")` writes: an episode for every sequence.

    Args:
        location: The folder: a path or URI.
        schema: The columns.
        version: `v3.0` or `v2.1`.
        fps: Steps per second, where no column says it.
        without: Columns to leave out.
        images: What becomes of images in rows: `bytes` (a feature `image`) or `video`, all alike or by column.
        encoding: How videos are encoded, all or by column. Videos are encoded anew only where it is given for them,
            and where they cannot be LeRobot's.
        videos: `shared`: many episodes a file, as LeRobot has them; `episode`: one each. v2.1 has always one each.
        files: `copy`, or `hardlink` for videos that stay whole files as they are.
        depth_max: Metres of the largest code, for depth that must be quantised.
        tasks: Texts to write in place of others.
        task_column: The column that says what is to be done: a text, or one for each step.
        picture_statistics: Frames whose pixels are counted: `sampled` as LeRobot does it, `all`, or `none`.
        chunks_size: Files of a chunk; of v2.1 episodes.
        data_files_size_in_mb: At which a data file is full.
        video_files_size_in_mb: At which a video is full.
        storage: Options of the object store.
        source_storage: Options of the store that the rows' files lie in.

    Raises:
        ColumnNotFoundError: A column is named that is not there.
        SchemaMismatchError: Columns have several rates, none, or no steps.
        ValueError: An option that cannot be.

    Example:
        ```python
        sl.convert(ds.where("split = 'train'"), "export/arm", to="lerobot")
        ```
    """
    _one_of("version", version, WRITTEN)
    _one_of("videos", videos, ("shared", "episode"))
    _one_of("files", files, ("copy", "hardlink"))
    _one_of("picture_statistics", picture_statistics, ("sampled", "all", "none"))
    plan = planned(schema, fps=fps, without=without)
    source = plan.source
    folder = FolderSettings(
        version=version,
        chunks_size=_positive("chunks_size", chunks_size, source, CHUNKS_SIZE),
        data_mb=_positive("data_files_size_in_mb", data_files_size_in_mb, source, DATA_FILE_MB),
        video_mb=_positive("video_files_size_in_mb", video_files_size_in_mb, source, VIDEO_FILE_MB),
    )
    alone = videos == "episode" or not folder.shared
    filmed = _filmed(plan, images)
    plan, depths = _quantised(plan, schema, filmed, depth_max)
    limit = 0 if alone else int(folder.video_mb * _MB)
    films = {
        feature.name: FilmSettings(
            rate=plan.rate,
            limit=limit,
            encoding=None if feature.name in depths else _encoding_of(encoding, feature.column),
            depth=depths.get(feature.name),
            link=files == "hardlink",
            looked_at=picture_statistics,
        )
        for feature in filmed
    }
    _check_encodings(encoding, filmed, depths)
    return LeRobotSink(
        location=absolute(location),
        schema=schema,
        plan=plan,
        texts=TaskTexts.of(schema, plan, column=task_column, renamed=dict(tasks or {})),
        films=films,
        folder=folder,
        looked_at=picture_statistics,
        storage=storage,
        source_storage=source_storage,
    )


def _encoding_of(encoding: Encoding | Mapping[str, Encoding] | None, column: str) -> Encoding | None:
    return encoding if encoding is None or isinstance(encoding, Encoding) else encoding.get(column)


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, found {value!r}.")


def _positive(name: str, given: Any, source: Mapping[str, Any], usual: int) -> Any:
    """A size: as it is asked for, else as it was, else as LeRobot has it."""
    if given is not None and (isinstance(given, bool) or not isinstance(given, (int, float)) or given <= 0):
        raise ValueError(f"{name}: expected a number above 0, found {given!r}.")
    if given is not None:
        return int(given) if name == "chunks_size" else given
    before = source.get(name)
    fits = isinstance(before, (int, float)) and not isinstance(before, bool) and before > 0
    return before if fits else usual


def _filmed(plan: ExportPlan, images: str | Mapping[str, str]) -> list[ExportedFeature]:
    """The features that are videos, or become some."""
    there = [feature.column for feature in plan.features if feature.role == "image"]
    forms = dict(images) if not isinstance(images, str) else dict.fromkeys(there, images)
    for form in [*forms.values(), *([images] if isinstance(images, str) else [])]:
        _one_of("images", form, ("bytes", "video"))
    if strangers := [name for name in forms if name not in there]:
        raise SchemaMismatchError(
            f"images: {strangers[0]!r} is no column of images; there are {', '.join(there) or 'none'}."
        )
    return [
        feature
        for feature in plan.features
        if feature.role == "video" or (feature.role == "image" and forms.get(feature.column) == "video")
    ]


def _quantised(
    plan: ExportPlan, schema: Schema, filmed: list[ExportedFeature], depth_max: float
) -> tuple[ExportPlan, dict[str, Depth]]:
    """Depth videos whose codes count units: what they are quantised to, and what is said of it."""
    depths: dict[str, Depth] = {}
    features = list(plan.features)
    for place, feature in enumerate(features):
        kind = schema[feature.column].type
        if feature not in filmed or kind is None or not kind.is_depth:
            continue
        measure = measure_of(kind.fields)
        if feature.role == "image":
            raise SchemaMismatchError(
                f"Column {feature.column!r}: depth maps in rows stay images: leave it out of images={{...: 'video'}}."
            )
        if measure is None:
            continue
        if measure.scale is None:
            depths[feature.name] = Depth(
                fps=float(plan.rate),
                depth_min=measure.nearest,
                depth_max=measure.farthest,
                shift=0.0 if measure.shift is None else measure.shift,
                use_log=measure.shift is not None,
                invalid=measure.invalid,
            )
            continue
        depths[feature.name] = Depth(fps=float(plan.rate), depth_max=depth_max)
        fields = {key: value for key, value in depths[feature.name].fields.items() if key not in {"type", "fps"}}
        kept = {key: value for key, value in feature.info.items() if key not in {"depth_scale", "units"}}
        features[place] = replace(feature, info={**kept, **fields})
    return replace(plan, features=features), depths


def _check_encodings(
    encoding: Encoding | Mapping[str, Encoding] | None, filmed: list[ExportedFeature], depths: Mapping[str, Depth]
) -> None:
    if encoding is None:
        return
    named = [feature.column for feature in filmed]
    given = named if isinstance(encoding, Encoding) else list(encoding)
    if strangers := [name for name in given if name not in named]:
        raise SchemaMismatchError(f"encoding: {strangers[0]!r} is no video; there are {', '.join(named) or 'none'}.")
    if not named:
        raise ValueError("encoding: there is no video to encode.")
    for feature in filmed:
        if feature.column in given and feature.name in depths and not isinstance(encoding, Encoding):
            raise ValueError(f"encoding: {feature.column!r} is depth, which LeRobot has as HEVC of 12 bits alone.")
