"""Opens a file as FFmpeg's view of a container: only kinds that hold their pictures and sounds themselves.

FFmpeg guesses a file's kind from its bytes, and among its kinds are lists of other files (ffconcat, HLS, DASH, IMF) and
descriptions of sessions (SDP, RTSP), which open files and sockets of this machine. None of them is ever opened.

The tables in the head of an MP4 or MOV are held against the file before FFmpeg makes room for what they declare: one
may say in a few bytes that there are a billion samples, all alike, and FFmpeg keeps a record of each. ISO/IEC
14496-12, section 8.6 to 8.8.
"""

from __future__ import annotations

import re
from functools import cache
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from seqlake.errors import CorruptFileError, DecodeError
from seqlake.media._limits import PACKETS, frame_pixels, guard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

    from seqlake.media._bytes import BlobBytes
    from seqlake.protocols import Ints

_MOVING = (
    "apng asf av1 avi avs2 avs3 cavsvideo dirac dnxhd dv evc film_cpk flv gif gxf h261 h263 h264 hevc ivf m4v matroska "
    "mjpeg mjpeg_2000 mov mpeg mpegts mpegvideo mxf nsv nut obu ogg rm roq ser smjpeg vc1 vc1test vvc wtv yuv4mpegpipe"
)
_STILL = "bmp_pipe gif_pipe jpeg_pipe jpegls_pipe jpegxl_pipe png_pipe qoi_pipe tiff_pipe webp_pipe"
_SOUND = (
    "aac ac3 aiff amr amrnb amrwb ape au caf dsf dts dtshd eac3 flac latm loas mlp mp3 mpc mpc8 nistsphere oma rso sox "
    "tak truehd tta voc w64 wav wv"
)
_ANIMATED = 2  # a bit of what a WebP says of itself
_OPTIONS = {
    "format_whitelist": ",".join(f"{_MOVING} {_STILL} {_SOUND}".split()),
    "protocol_whitelist": "",  # nothing beside the bytes that are handed in
}
_FIRST = frozenset({b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"moof", b"pnot"})
_INSIDE = frozenset({b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"edts"})
_ENTRY = {b"stts": 8, b"ctts": 8, b"stss": 4, b"stps": 4, b"stsc": 12, b"stco": 4, b"co64": 8, b"elst": 12}
_SHARE = 8  # samples of sound that one byte of the file may stand for; samples of all tracks for one packet of video
_MATRIX, _MATRIX_LATER = 40, 52  # bytes before it in a track's head, whose times have 32 bits or 64
_FAR = 64  # boxes of a file that is read by requests, beyond which only FFmpeg looks
_OPTIONAL = (0x100, 0x200, 0x400, 0x800)  # flags of the fields that a sample of a fragment may have

_MAGIC = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
    b"\x76\x2f\x31\x01": "exr",
    b"\0\0\0\x0cjP  ": "jp2",
    b"\xff\x4f\xff\x51": "jp2",
    b"\xff\x0a": "jxl",
    b"\0\0\0\x0cJXL ": "jxl",
    b"ply\n": "ply",
    b"ply\r\n": "ply",
    b"glTF": "glb",
    b"# .PCD": "pcd",
    b"VERSION .7": "pcd",
}
_BRANDS = {b"avif": "avif", b"avis": "avif", b"heic": "heic", b"heix": "heic", b"mif1": "heic"}
_NETPBM = re.compile(rb"P[2356](?:\s+\d|\s*#)")
BEGIN = ((b"# .PCD", "pcd"), (b"VERSION", "pcd"), (b"ply", "ply"), (b"LASF", "las"), (b"glTF", "glb"))
"""How 3D files begin whose names do not say what they are."""
PICTURES = frozenset({"jpeg", "png", "gif", "bmp", "tiff", "exr", "jp2", "jxl", "webp", "avif", "heic", "ppm", "pgm"})
"""The formats of pictures that are told apart."""
_MOVING_MAGIC = {b"\x1a\x45\xdf\xa3": "video", b"fLaC": "audio"}


def format_of(head: bytes, /) -> str | None:
    """The format that a file begins like; None where it is none of those told apart.

    Example:
        >>> format_of(b"ply" + bytes([10]) + b"format ascii 1.0")
        'ply'
    """
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp" and head[8:12] in _BRANDS:
        end = min(int.from_bytes(head[:4], "big"), len(head))
        return "avif" if b"avif" in {head[at : at + 4] for at in range(16, end, 4)} else _BRANDS[head[8:12]]
    if _NETPBM.match(head):
        return "ppm" if head[1:2] in b"36" else "pgm"
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def kind_of(head: bytes, /) -> str | None:
    """The type of column whose files begin like these bytes: `image`, `video` or `audio`; None where they are no media.

    Example:
        >>> kind_of(b"fLaC"), kind_of(bytes(64))
        ('audio', None)
    """
    if format_of(head) in PICTURES:
        return "image"
    if head[4:8] == b"ftyp":
        return "audio" if head[8:11] == b"M4A" else "video"
    if head[:4] == b"RIFF":
        return {b"WAVE": "audio", b"AVI ": "video"}.get(head[8:12])
    return next((kind for magic, kind in _MOVING_MAGIC.items() if head.startswith(magic)), None)


def open_container(file: BlobBytes, location: str, /) -> AbstractContextManager[InputContainer]:
    """FFmpeg's view of a file.

    Raises:
        CorruptFileError: It is of no kind that FFmpeg knows, its head is gone (an MP4 cut before its `moov`), or that
            declares more than the file can hold.
        DecodeError: It is of a kind that is never opened: a list of other files, or a rare one; or above a limit.
    """
    import av

    head = file.between(0, 24)
    if head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and head[20:21] and head[20] & _ANIMATED:
        raise DecodeError(
            f"{location} is an animated WebP, which FFmpeg does not decode. Convert it to a video or a GIF.",
            path=location,
        )

    check_tables(file, location)
    pixels = guard(frame_pixels())

    def opened() -> InputContainer:
        file.seek(0)
        container: InputContainer = av.open(
            cast("IO[bytes]", file), "r", buffer_size=1 << 16, options=_OPTIONS | pixels, **any_titles()
        )
        for stream in container.streams.video:
            if _codec(stream) is not None:
                stream.codec_context.options = pixels
                if stream.codec_context.name == "svq1":
                    # MOV's words on it, which Matroska keeps: FFmpeg 8.1 takes them for the decoder's, and errs.
                    stream.codec_context.extradata = None
        return container

    try:
        try:
            return opened()
        except (av.EOFError, av.InvalidDataError):  # the second since FFmpeg 9
            whole = _whole_boxes(file)  # cut inside the head of a fragment: those before it are whole
            if whole == file.end:
                raise
            file.end = whole
            return opened()
    except (av.ArgumentError, av.PermissionError) as error:  # a kind, or a protocol, that is not on our list
        raise DecodeError(
            f"{location} is of no kind that is opened as media: expected a file that holds its pictures or sounds "
            "itself (MP4, MOV, MKV, WebM, AVI, MPEG-TS, WAV, FLAC and others). Lists of other files (ffconcat, HLS, "
            "DASH, SDP) are never followed.",
            path=location,
        ) from error
    except av.FFmpegError as error:
        raise CorruptFileError(
            f"{location} cannot be opened as media: {error.strerror}. An MP4 whose end is missing is lost unless its "
            "head (moov) came first; record or copy it again.",
            path=location,
        ) from error


@cache
def any_titles() -> dict[str, Any]:
    """What `av.open` is told so that titles and comments may be in any encoding, for nothing here reads them.

    PyAV before 19 refuses a file over them unless it is told otherwise; later ones take them all, and no such argument.
    """
    from av.container import InputContainer

    return {"metadata_errors": "replace"} if hasattr(InputContainer, "metadata_errors") else {}


def is_noted(packet: Packet[Any], /) -> bool:
    """Whether there is anything beside a packet: to ask for one kind takes longer, and most have nothing."""
    return next(packet.iter_sidedata(), None) is not None


def refuse_encrypted(packet: Packet[Any], location: str, /) -> None:
    """Look at what is noted beside a packet.

    Raises:
        DecodeError: How it is encrypted.
    """
    if packet.has_sidedata("encryption_info"):
        raise DecodeError(f"{location} is encrypted. Decrypt it first, by whoever has its key.", path=location)


def _codec(stream: VideoStream) -> object:
    """None for a codec that is not known, whatever its type says."""
    return stream.codec_context


def _whole_boxes(file: BlobBytes) -> int:
    """Where the last whole top-level box of an MP4 ends; the end of the file where nothing is cut, or it is no MP4."""
    place = 0
    while file.between(4, 8) in _FIRST and place < file.end:
        head = file.between(place, place + 16)
        size = int.from_bytes(head[:4], "big")
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if len(head) < 8 or size < 8 or place + size > file.end:
            break
        place += size
    return place or file.end


class Box(NamedTuple):
    """One box of an MP4 or MOV, ISO/IEC 14496-12, 4.2.

    Attributes:
        kind: Its four letters.
        start: First byte of what it holds.
        stop: The byte behind it.
    """

    kind: bytes
    start: int
    stop: int


def check_tables(file: BlobBytes, location: str, /) -> None:
    """Look at the tables of an MP4 or MOV; of no other file.

    Raises:
        CorruptFileError: One declares more than the file can hold.
        DecodeError: It has more samples than `SEQLAKE_MAX_PACKETS`.
    """
    if file.between(4, 8) not in _FIRST:
        return
    for number, box in enumerate(boxes_in(file, 0, file.end)):
        if number > _FAR and not file.mapped:
            return
        if box.kind in _INSIDE:
            _check(file, box, location)


def display_matrix(file: BlobBytes, /) -> Ints | None:
    """[9] how an MP4 or MOV of one track turns its pictures, ISO/IEC 14496-12, 8.3.2; None where it cannot be told."""
    tracks = [
        track
        for moov in boxes_in(file, 0, file.end)
        if moov.kind == b"moov"
        for track in boxes_in(file, moov.start, moov.stop)
        if track.kind == b"trak"
    ]
    heads = [box for track in tracks for box in boxes_in(file, track.start, track.stop) if box.kind == b"tkhd"]
    if len(tracks) != 1 or len(heads) != 1:
        return None
    (head,) = heads
    start = head.start + (_MATRIX_LATER if file.between(head.start, head.start + 1) == b"\x01" else _MATRIX)
    data = file.between(start, min(start + 36, head.stop))
    return np.frombuffer(data, ">i4").astype(np.int64) if len(data) == 36 else None


def boxes_in(file: BlobBytes, place: int, stop: int, /) -> Iterator[Box]:
    """The boxes that follow each other from `place` to `stop`; one that is cut ends there."""
    while place + 8 <= stop:
        head = file.between(place, min(place + 16, stop))
        size, first = int.from_bytes(head[:4], "big"), place + 8
        if size == 1:
            size, first = int.from_bytes(head[8:16], "big"), place + 16
        end = stop if size == 0 else place + size
        if end < first:
            return
        yield Box(head[4:8], first, min(end, stop))
        place = end


def _check(file: BlobBytes, outer: Box, location: str, *, sound: bool = False) -> None:
    inner = list(boxes_in(file, outer.start, outer.stop))
    sound |= any(box.kind == b"hdlr" and file.between(box.start + 8, box.start + 12) == b"soun" for box in inner)
    boxes = {box.kind: box for box in inner}
    for box in inner:
        if box.kind in _INSIDE:
            _check(file, box, location, sound=sound)
        elif box.kind == b"trun":
            _declared(file, box, _fragment(file, box), location)
        elif box.kind in _ENTRY:
            _declared(file, box, _count(file, box) * _ENTRY[box.kind], location)
    if outer.kind == b"stbl":
        _check_samples(file, boxes, location, sound=sound)


def _check_samples(file: BlobBytes, boxes: dict[bytes, Box], location: str, *, sound: bool) -> None:
    """How many samples the tables of one track add up to; each takes a byte of the file, those of PCM perhaps less."""
    sizes = boxes.get(b"stsz", boxes.get(b"stz2"))
    count, nbytes = (0, 0) if sizes is None else _sizes(file, sizes, location)
    runs = table_of(file, boxes.get(b"stts"), 2)
    lasting = int(runs[:, 0].sum())
    chunks = max((_count(file, boxes[kind]) for kind in (b"stco", b"co64") if kind in boxes), default=0)
    parts = table_of(file, boxes.get(b"stsc"), 3)
    placed = int((np.diff(parts[:, 0], append=chunks + 1).clip(0, chunks) * parts[:, 1]).sum())
    pcm = sound and runs[:, 1].tolist() == [1]
    most = _SHARE * file.end if pcm else file.end
    if max(count, lasting, placed) > most or nbytes > _SHARE * file.end:
        raise CorruptFileError(
            f"{location} is damaged: its tables declare {max(count, lasting, placed):,} samples of {nbytes:,} bytes, "
            f"and the file has {file.end:,}. Copy it from where it came from.",
            path=location,
        )
    if not pcm:  # whose samples FFmpeg takes in whole chunks
        PACKETS.hold(max(count, lasting), location, most=_SHARE * PACKETS.value, path=location)


def _count(file: BlobBytes, box: Box) -> int:
    return int.from_bytes(file.between(box.start + 4, min(box.start + 8, box.stop)), "big")


def _declared(file: BlobBytes, box: Box, taken: int, location: str) -> None:
    room = file.end if box.stop == file.end else box.stop - box.start  # of a file that was cut the rest is read
    if taken > room:
        raise CorruptFileError(
            f"{location} is damaged: its table {box.kind.decode()!r} declares {taken:,} bytes, found {room:,}. Copy it "
            "from where it came from.",
            path=location,
        )


def _sizes(file: BlobBytes, box: Box, location: str) -> tuple[int, int]:
    """How many samples there are, and the bytes of all where they have one size; else the table holds their sizes."""
    head = file.between(box.start, min(box.start + 12, box.stop))
    common, count = int.from_bytes(head[4:8], "big"), int.from_bytes(head[8:12], "big")
    if box.kind == b"stsz" and common:
        return count, common * count
    _declared(file, box, count * 4 if box.kind == b"stsz" else count * (common & 0xFF) // 8, location)
    return count, 0


def table_of(file: BlobBytes, box: Box | None, width: int, /) -> Ints:
    """[entries, width] a table of numbers of 32 bits behind its count; none where there is no box."""
    if box is None:
        return np.zeros((0, width), np.int64)
    count = min(_count(file, box), (box.stop - box.start - 8) // (4 * width))
    data = file.between(box.start + 8, box.start + 8 + 4 * width * max(count, 0))
    return np.frombuffer(data, ">u4").astype(np.int64).reshape(-1, width)


def _fragment(file: BlobBytes, box: Box) -> int:
    """Bytes that the samples of a fragment take in its table; without fields of their own, at least one of the file."""
    flags, count = int.from_bytes(file.between(box.start + 1, box.start + 4), "big"), _count(file, box)
    fields = sum(1 for flag in _OPTIONAL if flags & flag)
    return 4 * fields * count if fields else (count if count > file.end else 0)
