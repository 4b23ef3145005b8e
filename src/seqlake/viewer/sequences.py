"""What the viewer shows of one sequence: its columns, signals, the clock, and what becomes of videos."""

from __future__ import annotations

import io
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.drawing.strips import READ_ERRORS, displayable, is_drawn, strip
from seqlake.dataset.reading.views import FileView, MediaView, StepsView
from seqlake.errors import MissingFileError, SchemaMismatchError, SeqlakeError, UnsafeReferenceError
from seqlake.files.locations import scheme
from seqlake.media import encode_image
from seqlake.media.video import VideoDecoder
from seqlake.spec.alignment import Clock, clock_of, exact, own_rate
from seqlake.viewer.asking import Parameters, plain
from seqlake.viewer.outlines import cell_of
from seqlake.viewer.scenes import SCENE, scene_columns, scene_rate
from seqlake.viewer.space import clouds_in, is_mesh, reading
from seqlake.viewer.tables import Shelf, kind_of
from seqlake.windows.clock import dataset_clock, tracks
from seqlake.windows.frames import framed
from seqlake.windows.spec import Window
from seqlake.windows.spec import exact as moment
from seqlake.windows.timestamps import samples_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.dataset.reading.excerpt import Excerpt
    from seqlake.dataset.reading.sequence import SequenceView
    from seqlake.spec.schema import Column

OUTSIDE = "Where you trust it: seqlake view --allow-dir FOLDER, or sl.view(ds, allow_dirs=[FOLDER])."
"""How files outside the dataset are shown."""
MOST = 1_000_000
"""Values of a signal that are sent as they are; of more, the envelope."""
HEARD = 1 << 22
"""Samples of a sound that are in memory at a time."""
_PLAYED = frozenset({"h264", "vp8", "vp9", "av1"})  # as Chromium decodes them
_CONTAINERS = {"mp4": "video/mp4", "m4v": "video/mp4", "mov": "video/mp4", "webm": "video/webm"}
_WIDEST = 1 << 16  # numbers of a step that are curves
_PICTURED = {"video", "depth", "frames", "image"}


def _view(shows: Excerpt, row: int) -> SequenceView:
    at = shows.index_of(row)
    return shows[at]


def _clock(shows: Excerpt, row: int, asked: Parameters) -> Clock:
    given = asked.text("clock")
    if given is not None and given in shows.schema:
        return clock_of(shows.schema, given=own_rate(shows.schema[given]))
    rate = asked.real("clock", 0.0, low=0.0, high=1e6) or None
    clock = dataset_clock(shows.source, given=rate)
    if clock.rate is None and (measured := scene_rate(_view(shows, row))) is not None:
        return Clock(rate=exact(measured), rule="the times of the scene's frames")
    return clock


def state_of(value: Any, /) -> dict[str, Any]:
    """Where the file of a cell is, by one look at its place."""
    if value is None:
        return {"state": "null"}
    if isinstance(value, StepsView):
        return {"state": "inline"}
    if value.inline:
        return {"state": "inline", "bytes": value.size}
    facts = {"place": value.reference, "path": value.reference}
    if scheme(value.reference) in {"http", "https"}:
        return {"state": "web", **facts}
    try:
        return {"state": "present", "bytes": value.size, **facts}
    except UnsafeReferenceError as error:
        return {
            "state": "outside",
            "why": error.message,
            "hint": OUTSIDE,
            **facts,
        }
    except FileNotFoundError as error:
        return {"state": "missing", "why": str(error), "resolved": value.location, **facts}
    except (SeqlakeError, OSError, ValueError) as error:
        return {"state": "failed", "why": str(error), **facts}


def files(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """The states of the files that some rows name."""
    shows = shelf.shows(asked)
    names = [name for name, column in shows.schema.items() if column.category == "file" or column.medium is not None]
    rows = asked.wholes("rows", most=100, high=shows.access.starts[-1])
    return {"rows": {str(row): {name: _state(_view(shows, row), name) for name in names} for row in rows}}


def _state(view: SequenceView, name: str) -> dict[str, Any]:
    try:
        return state_of(view[name])
    except READ_ERRORS as error:
        return {"state": "failed", "why": str(error)}


def sparklines(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """Envelopes of the first dimensions of a signal, for some rows."""
    shows, points = shelf.shows(asked), asked.whole("points", 48, low=2, high=200)
    column = shows.schema[asked.needed("col")]
    lines: dict[str, Any] = {}
    for row in asked.wholes("rows", most=100, high=shows.access.starts[-1]):
        cell = _view(shows, row)[column.name]
        if not isinstance(cell, np.ndarray) or column.category != "temporal":
            lines[str(row)] = {"length": None}
            continue
        steps = cell.reshape(len(cell), math.prod(cell.shape[1:]))[:, :4]
        low, high = envelope(steps, min(points, max(1, len(steps))))
        lines[str(row)] = {"length": len(cell), "low": plain(low.T.tolist()), "high": plain(high.T.tolist())}
    return {"rows": lines}


def envelope(steps: NDArray[Any], points: int, /) -> tuple[NDArray[Any], NDArray[Any]]:
    """([points, D] lowest, [points, D] highest) of even spans of [n, D] values; NaN is passed over."""
    return _envelope(steps, np.arange(points, dtype=np.int64) * len(steps) // max(1, points))


def _envelope(steps: NDArray[Any], starts: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same of the spans that begin at `starts`."""
    if not len(steps):
        return np.empty((0, steps.shape[1])), np.empty((0, steps.shape[1]))
    values = steps if steps.dtype.kind == "f" else steps.astype(np.float64)
    return np.fmin.reduceat(values, starts, axis=0), np.fmax.reduceat(values, starts, axis=0)


def sequence(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """What one sequence has, and the clock that relates its columns."""
    shows, row = shelf.row(asked)
    view, clock = _view(shows, row), _clock(shows, row, asked)
    facts: dict[str, Any] = {"scalars": [], "signals": [], "media": [], "files": [], "others": []}
    counts: list[int] = []
    for name, column in view.schema.items():
        try:
            counts += _place_cell(facts, shows, row, name, clock)
        except READ_ERRORS as error:
            facts["others"].append({"name": name, "type": str(column.arrow), "text": str(error), "failed": True})
    if columns := scene_columns(view.schema):
        counts = _place_scene(facts, columns) or counts
    for one in facts["signals"]:
        one["overlays"] = [o["name"] for o in facts["signals"] if o is not one and o["shape"] == one["shape"]]
    steps = max(counts, default=0) or _frames_of(view, clock)
    rate = clock.rate
    rates = {name: own_rate(column) for name, column in view.schema.items()}
    return {
        "row": row,
        "id": view.id,
        "steps": steps,
        "seconds": None if rate is None else float(steps / rate),
        "clock": {
            "hz": None if rate is None else float(rate),
            "fraction": None if rate is None else f"{rate.numerator}/{rate.denominator}",
            "why": clock.rule,
            "choices": [{"name": name, "hz": float(hz)} for name, hz in rates.items() if hz is not None],
        },
        **facts,
        "python": f"ds[{view.id!r}]",
        "links": [],
    }


def _place_scene(facts: dict[str, Any], columns: tuple[str, ...]) -> list[int]:
    """Say that some signals are one scene; how many steps it has. Rows of its agents are no steps of the clock."""
    steps = [one["length"] for one in facts["signals"] if one["name"] == columns[0]]
    facts["media"].append({"name": SCENE, "kind": "scene", "state": "inline" if steps else "null", "columns": columns})
    for one in facts["signals"]:
        if one["name"] in columns:
            one["pose"] = None
            one["aligned"] = one["aligned"] and one["length"] in steps
    return steps


def _place_cell(facts: dict[str, Any], shows: Excerpt, row: int, name: str, clock: Clock) -> list[int]:
    """Say what one cell holds, where it belongs; how many steps it has, where it counts those of the clock."""
    column, kind = shows.schema[name], kind_of(shows.schema[name])
    if kind in {"other", "embedding"}:
        facts["others"].append({"name": name, "type": str(column.arrow), **cell_of(shows, row, name)})
        return []
    if kind in {"points", "clouds"}:
        return _place_clouds(facts, _view(shows, row)[name], column, clock)
    view = _view(shows, row)
    value = view[name]
    if kind in {"text", "number", "boolean", "time"}:
        facts["scalars"].append({"name": name, "value": plain(value)})
    elif kind == "signal" and isinstance(value, np.ndarray) and math.prod(value.shape[1:]) <= _WIDEST:
        facts["signals"].append(_signal_facts(value, view, name, clock))
        if facts["signals"][-1]["aligned"]:
            return [len(value)]
    elif kind in {"video", "depth", "frames", "image", "audio"}:
        facts["media"].append({"name": name, "kind": kind, **state_of(value)})
        if isinstance(value, StepsView) and own_rate(column) in {None, clock.rate}:
            return [len(value)]
    elif isinstance(value, FileView):
        facts["files"].append({"name": name, "kind": "file", **state_of(value), "hint": value.hint()})
    elif kind != "signal" or value is not None:
        facts["others"].append({"name": name, "type": str(column.arrow), **cell_of(shows, row, name)})
    return []


def _place_clouds(facts: dict[str, Any], value: Any, column: Column, clock: Clock) -> list[int]:
    """Say how many clouds a cell has; as many are the steps of the clock, where it has one a step."""
    count, kind = clouds_in(value, column), kind_of(column)
    state = {"state": "inline"} if isinstance(value, (np.ndarray, list)) else state_of(value)
    facts["media"].append({"name": column.name, "kind": kind, "count": count, "frame": _frame(column), **state})
    if kind == "points" and is_mesh(value):
        facts["media"][-1]["mesh"] = True
    counted = kind == "clouds" and count is not None and own_rate(column) in {None, clock.rate}
    return [count] if counted and count is not None else []


def _frame(column: Column) -> str | None:
    """The frame of reference that a column's type names."""
    named = None if column.type is None else column.type.get("coordinate_frame")
    return named if isinstance(named, str) and named else None


def _steps_of(shelf: Shelf, asked: Parameters) -> int:
    """Steps of the sequence that is asked about; kept, since every film and signal of it asks, and all are read."""
    _, row = shelf.row(asked)
    key = ("steps", shelf.pinned(asked), row, asked.text("clock"))
    return int(shelf.kept(key, lambda: sequence(shelf, asked)["steps"]))


def _frames_of(view: SequenceView, clock: Clock) -> int:
    """Steps of a sequence without signals: the frames of the first video at the clock's rate that opens."""
    for name, column in view.schema.items():
        if framed(column) and own_rate(column) in {None, clock.rate}:
            try:
                return len(view[name])
            except READ_ERRORS:
                continue
    return 0


def _signal_facts(cell: NDArray[Any], view: SequenceView, name: str, clock: Clock) -> dict[str, Any]:
    column = view.schema[name]
    read_as = reading(view, name, cell)
    return {
        "name": name,
        "length": len(cell),
        "shape": list(cell.shape[1:]),
        "dtype": str(cell.dtype),
        "bytes": cell.nbytes,
        "aligned": column.timestamps is None and own_rate(column) in {None, clock.rate},
        "constant": None,
        "end": None,
        "pose": None if read_as is None else read_as.to_json(_frame(column), cell),
    }


def video(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """What a player has to know of one film; no frame is decoded."""
    shows, row = shelf.row(asked)
    column = shows.schema[asked.needed("col")]
    if kind_of(column) not in _PICTURED:
        raise SchemaMismatchError(f"{column.name!r} has no frames.")
    clock, value = _clock(shows, row, asked), _view(shows, row)[column.name]
    state = state_of(value)
    if state["state"] not in {"present", "inline"}:
        return {"hint": None, "why": None, **state}
    try:
        count = len(value)
        seconds = value.seconds
        decoder = value._open() if isinstance(value, MediaView) else None  # noqa: SLF001 - its own packets, not its frames
    except READ_ERRORS as error:
        hint = error.hint if isinstance(error, SeqlakeError) else None
        return {"state": "broken", "why": str(error), "hint": hint}
    rate = own_rate(column)
    facts: dict[str, Any] = {"state": "ok", "frames": count, "play": "frames", "findings": [], "audio": False}
    facts |= {"declared_fps": None if rate is None else float(rate), "aligned": rate in {None, clock.rate}}
    gaps = np.diff(seconds)
    facts["fps"] = float(1 / np.median(gaps)) if len(gaps) and np.median(gaps) > 0 else facts["declared_fps"]
    facts["variable"] = None
    if len(gaps) and gaps.max() > 1.5 * gaps.min():
        facts["variable"] = {"shortest": float(gaps.min()), "longest": float(gaps.max())}
    if isinstance(decoder, VideoDecoder):
        facts |= _of_packets(decoder, value, kind_of(column))
    facts["findings"] = list(_findings(facts, _steps_of(shelf, asked)))
    return facts


def _findings(facts: dict[str, Any], steps: int) -> Iterator[dict[str, Any]]:
    """What a viewer of the film should know."""

    def warning(code: str, message: str) -> dict[str, Any]:
        return {"code": code, "severity": "warning", "message": message, "hint": None}

    if facts["aligned"] and steps and facts["frames"] != steps:
        yield warning("frames", f"{facts['frames']} frames, but {steps} steps")
    if facts["variable"] is not None:
        yield warning("variable", "frames are not evenly spaced")
    if facts.get("start", 0) > 0:
        yield warning("start", f"it starts at {facts['start']:g} s, not at 0")


def _of_packets(decoder: Any, value: Any, kind: str) -> dict[str, Any]:
    stream = decoder.packets.stream
    start = float(decoder.pts[0] * decoder.time_base) if len(decoder) else 0.0
    height, width = decoder.size
    ending = value.reference.rpartition(".")[2].lower()
    mime = _CONTAINERS.get(ending, "video/mp4")
    whole = value.first == 0 and value.count is None
    known = (
        kind == "video"
        and stream.codec in _PLAYED
        and ending in {*_CONTAINERS, value.reference.lower()}
        and decoder.bits <= 10
    )
    plays = known and whole
    facts = {
        "codec": stream.codec,
        "profile": None,
        "pixel_format": stream.pix_fmt,
        "width": width,
        "height": height,
        "start": start,
        "end": float(ends_of(decoder)[-1]) if len(decoder) else 0.0,
        "b_frames": stream.reorder > 0,
        "gop": int(np.diff(decoder.starts).max()) if len(decoder.starts) > 1 else len(decoder),
        "play": "browser" if plays else "frames",
        "type": mime,
    }
    if known and not whole:
        facts["share"] = len(decoder) / max(1, len(decoder.packets.order))
    if plays and start > 0:  # Chromium takes the length for the end, and cuts what lies behind it
        lasts = facts["end"] - start
        cut = int(np.searchsorted(ends_of(decoder)[:-1], lasts))
        facts |= {"play": "tail", "browser_frames": cut}
    return facts


def ends_of(decoder: Any) -> NDArray[np.float64]:
    """[frames + 1] when each frame is shown as the container says, and when the last one ends."""
    base = decoder.time_base
    times = np.asarray(decoder.pts, np.float64) * base.numerator / base.denominator
    if not len(times):
        return np.zeros(1)
    gap = float(np.median(np.diff(times))) if len(times) > 1 else 1 / 30
    return np.append(times, times[-1] + gap)


def pts(shelf: Shelf, asked: Parameters, /) -> tuple[NDArray[Any], dict[str, str]]:
    """[frames + 1] seconds at which frames are presented, and the end of the last."""
    shows, row = shelf.row(asked)
    value = _media(shows, row, asked)
    return ends_of(value), {}


def _media(shows: Excerpt, row: int, asked: Parameters) -> Any:
    name = asked.needed("col")
    value = _view(shows, row)[name]
    if value is None:
        raise MissingFileError(f"The cell of {name!r} is null.")
    if not isinstance(value, (MediaView, StepsView)):
        raise SchemaMismatchError(f"{name!r} has no frames.")
    return value


def align(shelf: Shelf, asked: Parameters, /) -> tuple[NDArray[Any], dict[str, str]]:
    """[steps] int32: which sample of a column belongs to each step of the clock; -1 where none does."""
    shows, row = shelf.row(asked)
    clock, name = _clock(shows, row, asked), asked.needed("col")
    column, view = shows.schema[name], _view(shows, row)
    if not (framed(column) or (column.category == "temporal" and not column.timeless)):
        raise SchemaMismatchError(f"{name!r} has no steps.")
    steps = _steps_of(shelf, asked)
    anchors = np.arange(steps, dtype=np.int64)
    steps_of, frames_of = tracks(Window({name: range(1)}), shows.source.schema, clock)
    [track] = steps_of or frames_of
    value: Any = _media(shows, row, asked) if framed(column) else view[name]
    if value is None:
        raise MissingFileError(f"The cell of {name!r} is null.")
    if track.timestamps is not None:
        numbers = samples_at(track, anchors, lambda one: view[one]).reshape(-1)
    elif isinstance(value, MediaView) and clock.rate is not None and own_rate(column) not in {None, clock.rate}:
        numbers = value.numbers_at([step / clock.rate for step in range(steps)])
    else:
        numbers = track.samples(anchors).reshape(-1)
    count = len(value)
    return np.where((numbers < 0) | (numbers >= count), -1, numbers).astype("<i4"), {}


def signal(shelf: Shelf, asked: Parameters, /) -> tuple[NDArray[Any], dict[str, str]]:
    """Samples of a signal, or the envelope of a range of them."""
    shows, row = shelf.row(asked)
    column = shows.schema[asked.needed("col")]
    cell = _view(shows, row)[column.name] if column.category in {"temporal", "vector"} else ()
    if cell is None:
        raise MissingFileError(f"The cell of {column.name!r} is null.")
    if not isinstance(cell, np.ndarray):  # steps of unlike shapes are a list
        raise SchemaMismatchError(f"{column.name!r} is no signal of one shape a step.")
    steps = cell.reshape(len(cell), math.prod(cell.shape[1:]))
    start = asked.whole("start", 0, low=0, high=1 << 60)
    stop = asked.whole("stop", len(steps), low=0, high=1 << 60)
    dims = asked.wholes("dims", most=4096, high=steps.shape[1])
    part = steps[start:stop, dims] if dims else steps[start:stop]
    wide = part.dtype.itemsize > 4 or (part.dtype.kind in "iu" and part.dtype.itemsize > 2)
    points = asked.whole("points", 0, low=0, high=20_000)
    if not points and part.size > MOST:
        points = 4096
    head = {"X-Seqlake-Length": str(len(steps)), "X-Seqlake-Range": f"{start},{max(start, min(stop, len(steps)))}"}
    if points and len(part) > 2 * points:
        low, high = envelope(part, points)
        part = np.stack([low, high], -1)
        head["X-Seqlake-Envelope"] = str(points)
    return part.astype("<f8" if wide else "<f4"), head


def audio(shelf: Shelf, asked: Parameters, /) -> tuple[NDArray[Any], dict[str, str]]:
    """[points, channels, 2] lowest and highest samples of even spans of a sound."""
    shows, row = shelf.row(asked)
    name, points = asked.needed("col"), asked.whole("points", 1000, low=1, high=8000)
    if kind_of(shows.schema[name]) != "audio":
        raise SchemaMismatchError(f"{name!r} holds no sound.")
    value = _media(shows, row, asked)
    rate, count = value.rate, len(value)
    start, stop = (asked.real(one, at, low=0, high=1e9) for one, at in (("start", 0.0), ("stop", count / rate)))
    first, last = (min(count, math.ceil(moment(one) * rate)) for one in (start, stop))
    low, high = _loudness(value, (first, last), points)
    head = {"X-Seqlake-Rate": str(rate), "X-Seqlake-Seconds": f"{count / rate:g}"}
    return np.stack([low, high], -1).astype("<f4"), head


def _loudness(sound: Any, span: tuple[int, int], points: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The envelope of some samples, of which few are in memory at a time: two hours are gigabytes."""
    start, count = span[0], max(0, span[1] - span[0])
    points = min(points, count)
    bounds = start + np.arange(points + 1, dtype=np.int64) * count // max(1, points)
    each = max(1, HEARD * points // max(1, count))
    parts = []
    for at in range(0, max(1, points), each):
        some = bounds[at : at + each + 1]
        seconds = tuple(Fraction(int(one), sound.rate) for one in (some[0], some[-1]))
        parts.append(_envelope(sound.samples(seconds=seconds), some[:-1] - some[0]))
    low, high = (np.concatenate(sides) for sides in zip(*parts, strict=True))
    return low, high


def npy(array: NDArray[Any], /) -> bytes:
    """An array as the bytes of a `.npy` in Fortran order."""
    sink = io.BytesIO()
    np.save(sink, np.asfortranarray(array), allow_pickle=False)
    return sink.getvalue()


def frame(shelf: Shelf, asked: Parameters, /) -> tuple[bytes, str, dict[str, str]]:
    """One decoded picture as JPEG or PNG."""
    shows, row = shelf.row(asked)
    value, column = _media(shows, row, asked), shows.schema[asked.needed("col")]
    k, height = asked.whole("k", 0, low=0, high=1 << 40), asked.whole("height", 0, low=0, high=4320)
    if k >= len(value):
        raise MissingFileError(f"There is no frame {k}; there are {len(value)}.")
    metres = column.type is not None and column.type.is_depth
    decoded = value.decode([k])
    if 0 < height < decoded.shape[1]:
        decoded = value.decode([k], size=(height, max(1, round(decoded.shape[2] * height / decoded.shape[1]))))
    head = {"X-Seqlake-Frame": str(k), "X-Seqlake-Decoded": "1"}
    if decoded.dtype != np.uint8:
        there = decoded[np.isfinite(decoded) & (decoded > 0)] if metres else decoded[np.isfinite(decoded)]
        if there.size:
            head |= {"X-Seqlake-Range": f"{there.min():g},{there.max():g}", "X-Seqlake-Unit": "m" if metres else ""}
    picture = displayable(decoded, metres=metres)[0]
    kind = "png" if asked.text("format") == "png" or metres else "jpeg"
    return encode_image(picture, format=kind), f"image/{kind}", head


def film(shelf: Shelf, asked: Parameters, /) -> tuple[bytes, str, dict[str, str]]:
    """Some frames side by side."""
    shows, row = shelf.row(asked)
    count, height = asked.whole("n", 6, low=1, high=12), asked.whole("height", 64, low=16, high=240)
    column = shows.schema[asked.needed("col")]
    if not is_drawn(column):
        raise SchemaMismatchError(f"{column.name!r} has no frames.")
    drawn = strip(_view(shows, row), column.name, count=count, box=(4 * height, height))
    if not drawn.pictures:  # the tile beside it says what is wrong
        return encode_image(np.full((height, height, 3), 128, np.uint8), format="jpeg"), "image/jpeg", {}
    least = min(len(one) for one in drawn.pictures)
    joined = np.concatenate([one[:least] for one in drawn.pictures], axis=1)
    return encode_image(joined, format="jpeg"), "image/jpeg", {}
