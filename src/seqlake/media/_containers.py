"""Opens a file as FFmpeg's view of a container: only kinds that hold their pictures and sounds themselves.

FFmpeg guesses a file's kind from its bytes, and among its kinds are lists of other files (ffconcat, HLS, DASH, IMF) and
descriptions of sessions (SDP, RTSP), which open files and sockets of this machine. None of them is ever opened.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, cast

from seqlake.errors import CorruptFileError, DecodeError
from seqlake.media._boxes import check_tables
from seqlake.media._limits import frame_pixels, guard

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from av.container import InputContainer
    from av.video.stream import VideoStream

    from seqlake.media._bytes import BlobBytes

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
        # Titles and comments may be in any encoding; nothing here reads them.
        made = av.open(
            cast("IO[bytes]", file), "r", buffer_size=1 << 16, metadata_errors="replace", options=_OPTIONS | pixels
        )
        for stream in made.streams.video:
            if _codec(stream) is not None:
                stream.codec_context.options = pixels
        return made

    try:
        try:
            return opened()
        except av.EOFError:
            file.end = _whole_boxes(file)  # cut inside the head of a fragment: those before it are whole
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


def _codec(stream: VideoStream) -> object:
    """None for a codec that is not known, whatever its type says."""
    return stream.codec_context


def _whole_boxes(file: BlobBytes) -> int:
    """Where the last whole top-level box of an MP4 ends; the end of the file where nothing is cut."""
    place = 0
    while place < file.end:
        head = file.between(place, place + 16)
        size = int.from_bytes(head[:4], "big")
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if len(head) < 8 or size < 8 or place + size > file.end:
            break
        place += size
    return place or file.end
