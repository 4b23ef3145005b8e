"""Only files that hold their pictures and sounds themselves are opened; no list of other files, no socket."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest

import seqlake as sl
from seqlake import media
from seqlake.errors import DecodeError
from seqlake.media.video import cutting
from seqlake.protocols import Source
from seqlake.spec.column_types import ColumnType, Video

from . import clips
from .test_audio import encoded
from .test_torchcodec import missing

if TYPE_CHECKING:
    from collections.abc import Callable

SDP = (
    "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 96\na=rtpmap:96 H264/90000\n"
)
SECRET = "secret.mp4"  # lies in the current folder: FFmpeg's own care stops at names that lead out of it
LISTS = {
    "ffconcat": f"ffconcat version 1.0\nfile {SECRET}\n",
    "HLS": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{SECRET}\n#EXT-X-ENDLIST\n",
    "DASH": (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
        'mediaPresentationDuration="PT1S" profiles="urn:mpeg:dash:profile:full:2011"><Period>'
        '<AdaptationSet mimeType="video/mp4"><Representation id="0" '
        f'bandwidth="1"><BaseURL>{SECRET}</BaseURL></Representation></AdaptationSet></Period></MPD>'
    ),
    "SDP": SDP,
    "RTSP": "RTSP/1.0 200 OK\r\nLocation: rtsp://127.0.0.1/x\r\n",
    "vobsub": "# VobSub index file, v7\nid: en, index: 0\ntimestamp: 00:00:00:000, filepos: 000000000\n",
    "srt": "1\n00:00:01,000 --> 00:00:02,000\nhello\n\n2\n00:00:03,000 --> 00:00:04,000\nyou\n",
    "text": "nothing at all\n" * 40,
}
WAYS: dict[str, Callable[[Source], object]] = {
    "frames": lambda source: media.open(source).read(np.arange(1)),
    "index": media.index,
    "sound": lambda source: len(media.open(Source(blob=source.blob, column=ColumnType("audio")))),
    "cut": lambda source: cutting.cut(source, Path("never.mp4"), start=0, stop=1),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with a file in it that lists name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / SECRET).write_bytes(clips.clip("h264 with B-frames"))
    return tmp_path


@pytest.mark.sampled
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_other_files_is_refused_however_it_is_reached(kind: str, way: str) -> None:
    source = Source(blob=LISTS[kind].encode(), column=Video())
    with pytest.raises(DecodeError, match="Lists of other files|cannot be opened"):
        WAYS[way](source)


@pytest.mark.usefixtures("folder")
def test_ffmpeg_would_have_followed_the_list() -> None:
    with av.open(io.BytesIO(LISTS["ffconcat"].encode())) as container:
        assert len(list(container.decode(video=0))) == clips.COUNT


def test_a_stranger_s_dataset_follows_no_list_and_validate_says_so(folder: Path) -> None:
    ds = sl.create(str(folder / "ds"), sl.Schema({"cam": sl.Video(), "voice": ColumnType("audio")}))
    rows = []
    for kind, text in LISTS.items():
        file = folder / f"{kind}.mp4"
        file.write_text(text)
        rows.append({"sequence_id": kind, "cam": sl.File(str(file)), "voice": sl.File(str(file))})
    ds.append(rows)
    for row in ds:
        for name in ("cam", "voice"):
            with pytest.raises(DecodeError):
                row[name][0]
    found = {(one.sequence_id, one.column) for one in ds.validate(depth="decode").findings if one.severity == "error"}
    assert found == {(kind, name) for kind in LISTS for name in ("cam", "voice")}


@pytest.mark.skipif(bool(missing()), reason=missing() or "torchcodec is here")
def test_torchcodec_is_not_asked_about_what_it_might_take_for_a_list() -> None:
    """Its own FFmpeg decides what a file is; a kept index says nothing of that."""
    data = clips.clip("mpeg4 with B-frames")
    kept = media.index(Source(blob=data, column=Video()))
    text = b"ffconcat version 1.0\nfile '/etc/passwd'\n".ljust(len(data), b"#")
    with pytest.raises(DecodeError, match="is neither MP4"):
        media.open(Source(blob=text, column=Video(), index=kept), decoder="torchcodec")


@pytest.mark.parametrize(("first", "count"), [(-1, None), (-50, 3), (0, -1)])
@pytest.mark.parametrize("kind", ["video", "audio"])
def test_a_part_that_begins_before_its_file_is_refused(kind: str, first: int, count: int | None) -> None:
    """Counted from the end it would be another frame, in silence."""
    data = clips.clip("h264 with B-frames") if kind == "video" else encoded("pcm_s16le", "wav", "s16")
    with pytest.raises(DecodeError, match="begins at frame 0 or later"):
        len(media.open(Source(blob=data, column=ColumnType(kind), first=first, count=count)))


def test_what_a_stranger_s_schema_says_of_streams_and_rates_is_refused_by_name() -> None:
    data = clips.clip("h264 with B-frames")
    with pytest.raises(DecodeError, match="no video stream 7"):
        media.open(Source(blob=data, column=ColumnType("video", stream=7)))
    assert len(media.open(Source(blob=data, column=ColumnType("video", stream=[1]))))  # a hint of others: a finding
    with pytest.raises(DecodeError, match="fps: expected frames per second, found '1/0'"):
        media.open_steps(0, lambda _: None, ColumnType("image", fps="1/0"))
    with pytest.raises(DecodeError, match="fps: expected frames per second"):
        media.open_steps(0, lambda _: None, ColumnType("image", fps="1e999999999"))  # which takes hours to compute


@pytest.mark.parametrize("title", [b"caf\xe9 \xff\xfe", "réel".encode()], ids=["latin 1", "UTF-8"])
def test_a_title_may_be_in_any_encoding(title: bytes) -> None:
    """PyAV before 19 would refuse the file; later ones have no such argument."""
    to = io.BytesIO()
    with av.open(to, "w", format="matroska") as container:
        container.metadata["title"] = "T" * len(title)
        stream = container.add_stream("mpeg4", rate=5, width=32, height=32, pix_fmt="yuv420p")
        for value in (0, 90, 180):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((32, 32, 3), value, np.uint8))))
        container.mux(stream.encode())
    data = to.getvalue()
    assert data.count(b"T" * len(title)) == 1
    named = data.replace(b"T" * len(title), title)
    for blob in (data, named):
        frames = media.open(Source(blob=blob, column=Video())).read(np.arange(3))
        np.testing.assert_allclose(frames.mean(axis=(1, 2, 3)), [0, 90, 180], atol=8)
