"""Rules of the files that rows name (F4..): they are there, are what columns declare, and give what they promise."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from seqlake.spec.alignment import on_clock, own_rate
from seqlake.spec.pixel_formats import differs
from seqlake.spec.rules._rule import rule
from seqlake.spec.rules.facts import Said
from seqlake.spec.rules.signals import r317_moves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from seqlake.spec.alignment import Clock
    from seqlake.spec.findings import Finding
    from seqlake.spec.rules.facts import CellFacts, FileFacts, Gathered, RowFacts, SeenPictures, Times
    from seqlake.spec.schema import Column

FILES, DECLARED = "File Reference Columns", "Dataset-Level Metadata"

_CODECS = {
    "avc": "h264", "avc1": "h264", "avc3": "h264", "x264": "h264", "libx264": "h264", "h264nvenc": "h264",
    "h265": "hevc", "x265": "hevc", "libx265": "hevc", "hvc1": "hevc", "hev1": "hevc", "hevcnvenc": "hevc",
    "av01": "av1", "libsvtav1": "av1", "svtav1": "av1", "libaomav1": "av1",
    "vp09": "vp9", "libvpxvp9": "vp9", "vp08": "vp8", "libvpx": "vp8",
    "mp4v": "mpeg4", "xvid": "mpeg4", "divx": "mpeg4", "mpeg2": "mpeg2video", "mpeg1": "mpeg1video",
    "jpeg": "mjpeg", "motionjpeg": "mjpeg", "proresks": "prores",
    "mp4a": "aac", "libopus": "opus", "libmp3lame": "mp3", "libvorbis": "vorbis", "wav": "pcm",
}  # fmt: skip
_TAGGED = re.compile(r"^(avc1|avc3|hvc1|hev1|av01|vp08|vp09|mp4a|mp4v)\.")  # as in avc1.640028
_FORMATS = {
    "jpg": "jpeg", "jpe": "jpeg", "tif": "tiff", "heif": "heic", "dib": "bmp",
    "j2k": "jp2", "jpx": "jp2", "jpf": "jp2", "j2c": "jp2", "jpeg2000": "jp2", "jpeg 2000": "jp2",
}  # fmt: skip
_COARSE = 8  # ticks a frame, below which a tick is no rounding
SYNCHRONIZATION = "Synchronization"
_SLACK = Fraction(1, 10)  # seconds by which sound may begin late, end early, or be padded


def same_codec(declared: str, actual: str, /) -> bool:
    """Whether two names mean one codec: `avc1`, `libx264` and `H.264` are h264.

    Example:
        >>> same_codec("avc1.640028", "h264"), same_codec("hevc", "h264")
        (True, False)
    """
    names = [_codec(one) for one in (declared, actual)]
    return names[0] == names[1]


def _codec(name: str) -> str:
    name = name.strip().lower()
    tagged = _TAGGED.match(name)
    plain = re.sub(r"[\s._-]", "", tagged.group(1) if tagged else name)
    return "pcm" if plain.startswith("pcm") else _CODECS.get(plain, plain)


def check_cell(
    cell: CellFacts, column: Column, place: dict[str, Any], /, *, seen: SeenPictures, notes: Gathered
) -> Iterator[Finding]:
    """All rules over the files of one cell by themselves.

    Args:
        cell: What was found behind it.
        column: Its column.
        place: Where it is.
        seen: One for the whole dataset, the same for every cell.
        notes: The same; what is said at the end is gathered there.
    """
    for check in FILE_RULES:
        faults = [f for step, file in cell.files for f in check(file, column, _at(place, step))]
        yield from (replace(f, message=f"{f.message}{_more(cell, faults)}") for f in faults[: 1 if cell.many else None])
    for code, judge in GATHERED.items():
        reasons = [(step, file, why) for step, file in cell.files for why in judge(file, column)]
        if reasons:
            step, file, first = reasons[0]
            why = first if cell.many else "; ".join(why for _, _, why in reasons)
            said = Said(place=_at(place, step), message=why, about=file.name, more=_more(cell, reasons))
            notes.look(code, place, said)
        elif any(file.trouble is None for _, file in cell.files):
            notes.look(code, place)
    yield from f417_alike(cell, place, seen)
    yield from f418_part(cell, place)


def _more(cell: CellFacts, faults: Sequence[object]) -> str:
    # Of pictures, the first: what is wrong with one is mostly wrong with all.
    return f", and at {len(faults) - 1} more steps" if cell.many and len(faults) > 1 else ""


def _at(place: dict[str, Any], step: int | None) -> dict[str, Any]:
    return place if step is None else {**place, "step": step}


@rule("F404", "error", "A file that a row names is there.", section=FILES)
def f404_there(file: FileFacts, _: Column, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """Below the dataset's root, or wherever the reference says."""
    if file.trouble == "missing":
        yield {**place, "message": f"{file.name}: {file.why}"}


@rule("F406", "error", "A file is not empty.", section=FILES)
def f406_not_empty(file: FileFacts, _: Column, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """It may be of any type."""
    if file.trouble == "empty":
        yield {**place, "message": f"{file.name}: the file is empty"}


@rule("F407", "error", "A relative reference stays below the root when links are followed.", section=FILES)
def f407_inside(file: FileFacts, _: Column, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """Such a file is opened only with `allow_outside`."""
    if file.trouble == "outside":
        yield {**place, "message": f"{file.name}: {file.why}"}


@rule("F408", "warning", "A file can be looked at.", section=FILES)
def f408_reached(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """The store did not answer, or refused: nothing is known of the file."""
    yield from notes.findings_of("F408")


@rule("F409", "error", "A file can be opened as what its column says it is.", section=FILES)
def f409_readable(file: FileFacts, _: Column, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """A video that FFmpeg opens, a picture of a known kind, a file with sound."""
    if file.trouble == "unreadable":
        yield {**place, "message": f"{file.name}: {file.why}"}


@rule("F410", "error", "The declared `stream` is in the file.", section=DECLARED)
def f410_stream(file: FileFacts, column: Column, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """Streams of the column's kind are counted from 0."""
    if file.trouble == "no stream":
        assert column.type is not None
        yield {**place, "message": f"{file.name}: stream {column.type.get('stream')} is declared; {file.why}"}


@rule("F411", "error", "A file is whole.", section=FILES)
def f411_whole(file: FileFacts, _: Column, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """It ends where its head says; what lies before the cut can be read."""
    if file.cut:
        yield {**place, "message": f"{file.name}: the file ends before its head says; what follows is lost"}


@rule("F412", "error", "A copied-in file is the one that was copied.", section=FILES)
def f412_unchanged(file: FileFacts, _: Column, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """Its SHA-256 stands in the version that has it; a table checks the size itself (T510)."""
    if file.changed:
        yield {**place, "message": f"{file.name}: the bytes are not those that were copied in; put the file back"}


@rule("F413", "error", "`fps` is the rate of the file, `sample_rate` the one of its sound.", section=DECLARED)
def f413_rate(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """They decide which frame, and which sample, belongs to a step."""
    yield from notes.findings_of("F413")


def _rate(file: FileFacts, column: Column) -> Iterator[str]:
    assert column.type is not None
    declared, actual = column.type.get("sample_rate"), file.sample_rate
    if declared is not None and actual is not None and declared != actual:
        yield f"sample_rate {declared} is declared, the file has {actual}"
    rate = own_rate(column)
    if not _timed(file) or rate is None or column.type.type == "audio":
        return
    assert file.times is not None
    low, high = _rates(file.times)
    if not low <= rate <= high:
        measured = float((low + high) / 2)
        message = f"fps {column.type.get('fps')} is declared, the file shows {measured:.6g} frames a second"
        yield message


def _timed(file: FileFacts) -> bool:
    # Around a cut frames are missing.
    return file.times is not None and len(file.times.ticks) > 1 and not file.cut


def _rates(times: Times) -> tuple[Fraction, Fraction]:
    """The least and the greatest rate that the times of frames may mean."""
    frames = len(times.ticks) - 1
    span = int(times.ticks[-1]) - int(times.ticks[0])
    if _even(times):
        # Each time is rounded to a tick, unless a frame is but a few. 1 in 5000 tells 29.97 from 30 and lets 14.985 be.
        loose = max(Fraction(span, 5000), Fraction(int(span // frames >= _COARSE)))
    else:
        loose = max(Fraction(span, 50), Fraction(span, frames))  # their mean rate
    return frames / ((span + loose) * times.tick), frames / (max(span - loose, Fraction(1, 2)) * times.tick)


def _even(times: Times) -> bool:
    gaps = times.ticks[1:] - times.ticks[:-1]
    shortest, longest = int(gaps.min()), int(gaps.max())
    return shortest == longest or (longest - shortest <= 2 and shortest >= _COARSE)


@rule("F414", "warning", "Frames of a video with `fps` are shown at k / fps.", section="Synchronization")
def f414_even(file: FileFacts, column: Column, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """Frames shown at uneven times need a column of times, which `timestamps` names."""
    rate = own_rate(column)
    if not _timed(file) or rate is None:
        return
    assert file.times is not None
    if _even(file.times):
        return
    low, high = _rates(file.times)
    if not low <= rate <= high:
        return  # F413 says so
    first = int(file.times.ticks[0])
    for frame, tick in enumerate(file.times.ticks.tolist()):
        seconds = (tick - first) * file.times.tick
        if abs(seconds * rate - frame) > Fraction(1, 2):
            expected = float(frame / rate)
            message = f"{file.name}: frame {frame} is shown at {float(seconds):g} s, fps says {expected:g} s"
            yield {**place, "step": frame, "message": message}
            return


@rule("F415", "error", "`codec`, `format` and `pixel_format` are those of the file.", section=DECLARED)
def f415_encoding(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """Names for the same codec are the same: `avc1`, `libx264` and `H.264` are h264; so are pixels in either order of
    bytes. `rgb24` declares what is wanted, not what is there.
    """
    yield from notes.findings_of("F415")


def _encoding(file: FileFacts, column: Column) -> Iterator[str]:
    assert column.type is not None
    codec, kind = column.type.get("codec"), column.type.get("format")
    if isinstance(codec, str) and file.codec is not None and not same_codec(codec, file.codec):
        yield f"codec {codec!r} is declared, the file has {file.codec!r}"
    pixels = column.type.pixel_format
    if pixels is not None and file.pixels is not None and differs(pixels, file.pixels):
        yield f"pixel_format {pixels!r} is declared, the file has {file.pixels!r}"
    if isinstance(kind, str) and file.format is not None:
        plain = kind.strip().lower().removeprefix("image/").lstrip(".")
        if _FORMATS.get(plain, plain) != file.format:
            yield f"format {kind!r} is declared, the file is {file.format!r}"


@rule("F416", "error", "`resolution` and `channels` are those of the file.", section=DECLARED)
def f416_shape(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """Width and height as shown, rotation applied."""
    yield from notes.findings_of("F416")


def _shape(file: FileFacts, column: Column) -> Iterator[str]:
    assert column.type is not None
    declared = _resolution(column.type.get("resolution"))
    if declared is not None and file.size is not None and declared != file.size:
        wanted, actual = (f"{width}x{height}" for width, height in (declared, file.size))
        yield f"resolution {wanted} is declared, the file has {actual}"
    channels = column.type.get("channels")
    if channels is not None and file.channels is not None and channels != file.channels:
        yield f"{channels} channels are declared, the file has {file.channels}"


def _resolution(declared: Any) -> tuple[int, int] | None:
    """Width and height from [640, 480] or "640x480"; None where it is something else."""
    if isinstance(declared, str):
        match = re.fullmatch(r"\s*(\d+)\s*[x×*,]\s*(\d+)\s*", declared, re.IGNORECASE)
        return (int(match.group(1)), int(match.group(2))) if match else None
    if isinstance(declared, list) and len(declared) == 2 and all(type(one) is int for one in declared):
        return (declared[0], declared[1])
    return None


@rule("F417", "warning", "Pictures of a column are alike.", section=FILES)
def f417_alike(cell: CellFacts, place: dict[str, Any], seen: SeenPictures, /) -> Iterator[dict[str, Any]]:
    """One type of number and as many channels in the whole column, one size in a sequence: else they fit no array."""
    first: FileFacts | None = None
    for step, file in cell.files:
        kind = _pixels(file)
        if not kind:
            continue
        here = place if step is None else {**place, "step": step}
        first = first or file
        usual = seen.kinds.setdefault(str(place["column"]), kind)
        if kind != usual:
            yield {**here, "message": f"{file.name}: {kind}, pictures before have {usual}"}
            return
        if file.size != first.size and file.size is not None and first.size is not None:
            (width, height), (others, tall) = file.size, first.size
            yield {**here, "message": f"{file.name}: {width}x{height} pixels, pictures before have {others}x{tall}"}
            return


def _pixels(file: FileFacts) -> str:
    """What the pixels are handed out as, or how many bits they have; empty where neither is known."""
    if file.array is not None:
        return f"pixels of {file.array[0]} [H, W, {file.array[1]}]"
    return "" if file.bits is None else f"{file.bits} bits a colour"


@rule("F418", "error", "A row's part of a shared file lies within the file.", section=FILES)
def f418_part(cell: CellFacts, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """`first_frame` and `num_frames` of a struct cell."""
    if cell.part is None or cell.held is None:
        return
    first, count = cell.part
    if first < 0 or count < 0 or cell.held < count:
        held = max(0, cell.held)
        yield {**place, "message": f"frames {first} to {first + count - 1} are declared; {held} are there from {first}"}


@rule("F419", "note", "Pictures are upright, or the column says what becomes of turns.", section=FILES)
def f419_upright(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """EXIF, or an AVIF's properties, say a turn: `orientation` in the column's type applies it, or keeps the rows."""
    yield from notes.findings_of("F419")


def _turned(file: FileFacts, _: Column) -> Iterator[str]:
    if file.turn != 1:
        yield (
            f"the file says orientation {file.turn}, and pixels are read as they are stored; "
            'orientation="apply" in the column\'s type turns them, "keep" says that this is meant'
        )


def _unreachable(file: FileFacts, _: Column) -> Iterator[str]:
    if file.trouble == "unreachable":
        yield file.why


FILE_RULES = (
    f404_there,
    f406_not_empty,
    f407_inside,
    f409_readable,
    f410_stream,
    f411_whole,
    f412_unchanged,
    f414_even,
)
GATHERED: Mapping[str, Callable[[FileFacts, Column], Iterator[str]]] = {
    "F408": _unreachable,
    "F413": _rate,
    "F415": _encoding,
    "F416": _shape,
    "F419": _turned,
}
"""What is judged file by file and told at the end: of a column, metadata that are false of one file are of most."""

DECLARED_RULES = (f408_reached, f413_rate, f415_encoding, f416_shape, f419_upright)


def check_row(row: RowFacts, clock: Clock, /) -> Iterator[Finding]:
    """All rules over what the files of one row say of each other and of its steps."""
    yield from f421_frames(row, clock)
    yield from f422_sound(row, clock)


def check_decoded(cell: CellFacts, column: Column, place: dict[str, Any], notes: Gathered, /) -> Iterator[Finding]:
    """All rules over a cell whose files were decoded; what is worth a note is gathered."""
    yield from f431_decodes(cell, column, place)
    kind = "" if column.type is None else column.type.type
    if cell.looked:
        notes.note("F432", place, "every frame is black", holds=cell.black)
        notes.note("F433", place, "all frames look the same", holds=cell.frozen and not cell.black)
        notes.note("F434", place, "every sample is zero", holds=cell.silent)
    why = f"frames cannot be read: {cell.unread}" if cell.unread else ""
    why = why or f"not decoded: nothing here decodes this kind of {kind}{cell.kind and '. '}{cell.kind.rstrip('.')}"
    notes.note("F435", place, why, holds=cell.undecoded or bool(cell.unread))


def check_notes(notes: Gathered, /) -> Iterator[Finding]:
    """What was gathered, once all rows were looked at."""
    for check in (r317_moves, *DECLARED_RULES, f432_black, f433_frozen, f434_silent, f435_undecoded):
        yield from check(notes)


@rule("F421", "warning", "A video has a frame for every step.", section=SYNCHRONIZATION)
def f421_frames(row: RowFacts, clock: Clock, /) -> Iterator[dict[str, Any]]:
    """At the clock's rate as many as steps; at another rate as many as fit in their time, give or take one; with
    `timestamps` as many as times. Missing frames are edges of windows.
    """
    for name, count in row.observed.frames.items():
        expected, why = _expected(row, name, clock)
        if expected is None:
            continue
        if abs(count - expected) > (0 if why.startswith("=") else 1):
            said = why.removeprefix("=")
            yield {**row.places[name], "message": f"{count} frames, expected {_count(expected)}: {said}"}


def _count(expected: Fraction) -> str:
    return str(expected) if expected.denominator == 1 else f"about {float(expected):.1f}"


def _expected(row: RowFacts, name: str, clock: Clock) -> tuple[Fraction | None, str]:
    """How many frames a video should have, and why; `=` before the reason where it is exact."""
    column = row.schema[name]
    stamps = column.timestamps
    if stamps is not None:
        times = row.observed.steps.get(stamps, -1)
        return (Fraction(times), f"={stamps} has so many times") if times >= 0 else (None, "")
    rate = own_rate(column)
    steps, of = _steps(row, clock)
    if steps is not None:
        if rate is None or clock.rate is None or rate == clock.rate:
            return Fraction(steps), f"={of} has {steps} steps"
        return steps * rate / clock.rate, f"{of} has {steps} steps at {float(clock.rate):g} a second"
    for other, count in row.observed.frames.items():
        theirs = own_rate(row.schema[other])
        if other == name:
            break  # the first that can be compared is what others are compared with
        if theirs is not None and rate is not None:
            exact = "=" if theirs == rate else ""
            return count * rate / theirs, f"{exact}{other} has {count} at {float(theirs):g} a second"
    return None, ""


def _steps(row: RowFacts, clock: Clock) -> tuple[int | None, str]:
    """The row's steps and the column that says so."""
    for name, count in row.observed.steps.items():
        if count >= 0 and on_clock(row.schema, name, clock.rate):
            return count, name
    return row.observed.length, "length"


@rule("F422", "warning", "Sound lasts as long as the sequence.", section=SYNCHRONIZATION)
def f422_sound(row: RowFacts, clock: Clock, /) -> Iterator[dict[str, Any]]:
    """Give or take a step, or a tenth of a second where that is more."""
    steps, of = _steps(row, clock)
    if steps is None or clock.rate is None:
        return
    lasts = steps / clock.rate
    for name, cell in row.cells.items():
        for _, file in cell.files:
            if file.seconds is not None and abs(Fraction(file.seconds) - lasts) > max(_SLACK, 1 / clock.rate):
                message = f"{file.name}: {file.seconds:.3f} s of sound, {steps} steps of {of} last {float(lasts):g} s"
                yield {**row.places[name], "message": message}


@rule("F431", "error", "Every frame, picture, cloud and sample decodes.", section=FILES)
def f431_decodes(cell: CellFacts, column: Column, place: dict[str, Any], /) -> Iterator[dict[str, Any]]:
    """At depth `decode`: damage that FFmpeg reports, packets that are not those of the kept index."""
    noun = {"audio": "sample", "4d": "cloud"}.get("" if column.type is None else column.type.type, "frame")
    for damage in cell.damage:
        which = f"{noun} {damage.first}" if damage.first == damage.last else f"{noun}s {damage.first} to {damage.last}"
        yield {**place, "step": damage.first, "message": f"{cell.name}{which}: {damage.why}"}


@rule("F432", "note", "A video shows something.", section=FILES)
def f432_black(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """At depth `decode`: every frame is black."""
    yield from notes.findings_of("F432")


@rule("F433", "note", "A video moves.", section=FILES)
def f433_frozen(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """At depth `decode`: all frames look the same, as when a camera hangs or nothing moves before it."""
    yield from notes.findings_of("F433")


@rule("F434", "note", "Sound can be heard.", section=FILES)
def f434_silent(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """At depth `decode`: every sample is zero."""
    yield from notes.findings_of("F434")


@rule("F435", "note", "There is a decoder for the file, and what it decodes can be read.", section=FILES)
def f435_undecoded(notes: Gathered, /) -> Iterator[dict[str, Any]]:
    """At depth `decode`: files of other kinds are not looked into; it says what they are and what reads them. Frames
    are not handed out where the file has other pixels than the column declares, or codes of more than 8 bits in an
    order that nothing here reads.
    """
    yield from notes.findings_of("F435")
