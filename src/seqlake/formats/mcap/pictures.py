"""Pictures, videos and point clouds of messages: what columns they are, and the bytes of their steps.

Encoded pictures stay as they are, raw ones become PNG, which loses nothing, and packets of a video are put into MP4
without a frame being decoded.
"""

from __future__ import annotations

import struct
import tempfile
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError
from seqlake.formats.mcap.kinds import Group, base_name
from seqlake.formats.mcap.ros import octets_of
from seqlake.media import TICKS, encode_image, format_of
from seqlake.spec.column_types import ColumnType, Depth, Image, Spatial4D, Video

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_RAW = {"sensor_msgs/Image", "foxglove/RawImage", "foxglove_msgs/RawImage"}
_ENCODED = {"sensor_msgs/CompressedImage", "foxglove/CompressedImage", "foxglove_msgs/CompressedImage"}
_VIDEOS = {"foxglove/CompressedVideo", "foxglove_msgs/CompressedVideo"}
_CLOUDS = {"sensor_msgs/PointCloud2", "foxglove/PointCloud", "foxglove_msgs/PointCloud"}
_CODECS = {"h264": "h264", "h265": "hevc", "hevc": "hevc", "vp9": "vp9", "av1": "av1"}
_BAYER = {"rggb": (0, 1, 1, 2), "bggr": (2, 1, 1, 0), "gbrg": (1, 2, 0, 1), "grbg": (1, 0, 2, 1)}
"""The colours, 0 red to 2 blue, of the two by two pixels that repeat from the top left on."""
_CHANNELS = {
    **dict.fromkeys(("rgb8", "bgr8", "8UC3"), ("uint8", 3)),
    **dict.fromkeys(("rgba8", "bgra8", "8UC4"), ("uint8", 4)),
    **dict.fromkeys(("mono8", "8UC1"), ("uint8", 1)),
    **dict.fromkeys(("mono16", "16UC1"), ("uint16", 1)),
    "32FC1": ("float32", 1),
    **{f"bayer_{pattern}{bits}": (f"uint{bits}", 1) for pattern in _BAYER for bits in (8, 16)},
    **dict.fromkeys(("yuv422", "uyvy", "UYVY", "yuv422_yuy2", "yuyv", "YUYV"), ("uint8", 2)),
}
_BLUE_FIRST = {"bgr8", "8UC3", "bgra8", "8UC4"}
_YUV = {"yuv422": "uyvy422", "uyvy": "uyvy422", "UYVY": "uyvy422"}  # the others are yuyv422
_ROS_POINTS = dict(enumerate(("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"), 1))
_FOXGLOVE_POINTS = dict(enumerate(("u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"), 1))
_DEPTH_HEADER = 12  # bytes that compressed_depth_image_transport puts before a PNG
_MOST_PIXELS = 1 << 28
_FASTSTART = {"movflags": "+faststart"}


def draft(kind: Group, sample: dict[str, Any], /) -> tuple[Any, tuple[str, ...], pa.DataType, ColumnType] | str | None:
    """The role, the paths and the types of a topic of pictures or packets.

    Returns:
        None where it is no such topic; a text where its pictures cannot be read.
    """
    name = base_name(kind)
    if name in _VIDEOS:
        codec = _CODECS.get(str(sample.get("format", "")).lower())
        if codec is None:
            return f"a video of format {sample.get('format')!r:.40}; h264, h265, vp9 and av1 are read"
        video = Video(inline=True, codec=codec)
        return "video", ("",), video.arrow, video
    if name in _ENCODED:
        image = _encoded_type(sample)
        return "image", ("",), pa.list_(pa.binary()), image
    if name in _RAW:
        encoding = str(sample.get("encoding", ""))
        if encoding not in _CHANNELS:
            return f"pixels of encoding {encoding!r:.40} are not read; {', '.join(_CHANNELS)} are"
        size = [int(sample.get("width") or 0), int(sample.get("height") or 0)]
        if encoding == "16UC1":
            return (
                "image",
                ("",),
                pa.list_(pa.binary()),
                Depth(frames="bytes", units="mm", format="png", resolution=size),
            )
        if encoding == "32FC1":  # metres, as REP 118 has them
            metres = Depth(frames="bytes", units="m", format="tiff", resolution=size)
            return "image", ("",), pa.list_(pa.binary()), metres
        grey: dict[str, Any] = {"channels": 1} if encoding in {"mono8", "8UC1"} else {}
        if _pattern(encoding) and encoding.endswith("16"):
            grey = {"bayer": _pattern(encoding)}
        return "image", ("",), pa.list_(pa.binary()), Image(frames="bytes", format="png", resolution=size, **grey)
    return None


def _encoded_type(sample: dict[str, Any]) -> ColumnType:
    said = str(sample.get("format", ""))
    data = _encoded(sample)
    kind = format_of(data[:64])
    if "compressedDepth" in said and said.startswith("16UC1"):
        return Depth(frames="bytes", units="mm", format=kind)
    return Image(frames="bytes", format=kind)


def _encoded(message: dict[str, Any]) -> bytes:
    data = octets_of(message.get("data") or b"" if not isinstance(message.get("data"), np.ndarray) else message["data"])
    deep = "compressedDepth" in str(message.get("format", ""))
    return data[_DEPTH_HEADER:] if deep and data[_DEPTH_HEADER : _DEPTH_HEADER + 4] == b"\x89PNG" else data


def _pattern(encoding: str) -> str:
    """The pattern of a Bayer encoding, as `rggb`; nothing for others."""
    return encoding[6:10] if encoding.startswith("bayer_") else ""


def picture_of(kind: Group, message: dict[str, Any], /) -> bytes:
    """The picture of one message: as it is encoded, or as PNG; floats as TIFF.

    Raises:
        CorruptFileError: Its size is not that of its bytes, or its pixels are not read.
    """
    if base_name(kind) in _ENCODED:
        return _encoded(message)
    pixels = _pixels(message)
    return encode_image(pixels, format="tiff" if pixels.dtype == np.float32 else "png")


def _pixels(message: dict[str, Any]) -> NDArray[Any]:
    encoding, width, height = (
        str(message.get("encoding")),
        int(message.get("width") or 0),
        int(message.get("height") or 0),
    )
    if encoding not in _CHANNELS or not (width > 0 and height > 0 and width * height <= _MOST_PIXELS):
        raise CorruptFileError(f"a picture of {width}x{height} pixels of encoding {encoding!r:.40} is not read")
    name, channels = _CHANNELS[encoding]
    data = octets_of(message["data"])
    dtype = np.dtype(name).newbyteorder(">" if message.get("is_bigendian") else "<")
    row = width * channels * dtype.itemsize
    step = int(message.get("step") or row)
    if step < row or (height - 1) * step + row > len(data):
        raise CorruptFileError(
            f"a picture of {width}x{height} pixels ({encoding}) has {len(data)} bytes in rows of {step}: too few"
        )
    strides = (step, channels * dtype.itemsize, dtype.itemsize)
    pixels: NDArray[Any] = np.ndarray((height, width, channels), dtype, data, strides=strides)
    if channels == 2:
        return _from_yuv(np.ascontiguousarray(pixels), _YUV.get(encoding, "yuyv422"))
    if channels == 1:
        codes = np.ascontiguousarray(pixels[:, :, 0].astype(name))
        return _from_bayer(codes, _pattern(encoding)) if encoding.startswith("bayer_") and name == "uint8" else codes
    return np.ascontiguousarray(pixels[:, :, 2::-1] if encoding in _BLUE_FIRST else pixels[:, :, :3])


def _from_yuv(pixels: NDArray[Any], layout: str) -> NDArray[Any]:
    import av

    if pixels.shape[1] % 2:
        raise CorruptFileError(f"a picture of {pixels.shape[1]} pixels a row in YUV 4:2:2, which come in pairs")
    if layout == "uyvy422":
        pixels = np.ascontiguousarray(pixels[:, :, ::-1])
    frame = av.VideoFrame.from_ndarray(pixels, format="yuyv422")
    picture: NDArray[Any] = frame.to_ndarray(format="rgb24")
    return picture


def _from_bayer(codes: NDArray[np.uint8], pattern: str) -> NDArray[np.uint8]:
    """[height, width, 3] each missing colour as the mean of its nearest neighbours, two or four."""
    height, width = codes.shape
    if height < 2 or width < 2:
        raise CorruptFileError(f"a picture of {width}x{height} pixels of a Bayer pattern: two by two at least")
    around = np.pad(codes, 1, mode="reflect").astype(np.uint16)  # keeps the pattern
    tile = np.roll(np.array(_BAYER[pattern]).reshape(2, 2), 1, axis=(0, 1))
    colours = np.tile(tile, (height // 2 + 2, width // 2 + 2))[: height + 2, : width + 2]
    out = np.empty((height, width, 3), np.uint8)
    for colour in range(3):
        known = np.where(colours == colour, around, np.uint16(0))
        sides = known[:-2, 1:-1] + known[2:, 1:-1] + known[1:-1, :-2] + known[1:-1, 2:]
        middle = 4 * known[1:-1, 1:-1]
        if colour == 1:  # green has a neighbour on each side
            total = middle + sides
        else:
            corners = known[:-2, :-2] + known[:-2, 2:] + known[2:, :-2] + known[2:, 2:]
            total = middle + 2 * sides + corners
        out[:, :, colour] = (total + 2) // 4
    return out


def codec_of(message: dict[str, Any], /) -> str:
    """FFmpeg's name of the codec of a packet.

    Raises:
        CorruptFileError: It is of another one than those that are read.
    """
    codec = _CODECS.get(str(message.get("format", "")).lower())
    if codec is None:
        raise CorruptFileError(f"a packet of format {message.get('format')!r:.40}; h264, h265, vp9 and av1 are read")
    return codec


# ---- points
def cloud_type(kind: Group, sample: dict[str, Any], /) -> tuple[pa.DataType, ColumnType] | None:
    """The types of a topic of point clouds: [T, N, fields]; None where it is none."""
    if base_name(kind) not in _CLOUDS:
        return None
    points = _point_type(kind, sample)
    number = pa.from_numpy_dtype(_number_of(points))
    names = list(points.names or ())
    return pa.list_(pa.list_(pa.list_(number))), Spatial4D(fields=names)


def _number_of(points: np.dtype[Any]) -> np.dtype[Any]:
    return np.result_type(*(points[name].base for name in points.names or ()), np.float32)


def _point_type(kind: Group, message: dict[str, Any]) -> np.dtype[Any]:
    ros = base_name(kind) == "sensor_msgs/PointCloud2"
    codes, order = (_ROS_POINTS, ">" if message.get("is_bigendian") else "<") if ros else (_FOXGLOVE_POINTS, "<")
    size = int(message.get("point_step" if ros else "point_stride") or 0)
    names, formats, offsets = [], [], []
    for one in message.get("fields") or []:
        code = codes.get(int(one.get("datatype" if ros else "type") or 0))
        if code is None or (ros and int(one.get("count") or 1) != 1):
            raise CorruptFileError(f"a cloud has the field {one.get('name')!r:.40} of a type that is not read")
        names.append(str(one.get("name")))
        formats.append(order + code)
        offsets.append(int(one.get("offset") or 0))
    try:
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})
    except (ValueError, TypeError) as error:
        raise CorruptFileError(f"the fields of a cloud do not fit in points of {size} bytes: {error}") from None


def points_of(kind: Group, message: dict[str, Any], column: ColumnType, /) -> NDArray[Any]:
    """[N, fields] the points of one message.

    Raises:
        CorruptFileError: Its points are not in its bytes, or have other fields.
    """
    points = _point_type(kind, message)
    data = octets_of(message["data"])
    names = column.get("fields") or []
    if list(points.names or ()) != names:
        raise CorruptFileError(f"a cloud has the fields {list(points.names or ())}, where {names} were expected")
    if base_name(kind) == "sensor_msgs/PointCloud2":
        width, height = int(message.get("width") or 0), int(message.get("height") or 0)
    else:
        width, height = len(data) // max(points.itemsize, 1), 1
    row = width * points.itemsize
    step = int(message.get("row_step") or row)
    if height and width and (step < row or (height - 1) * step + row > len(data)):
        raise CorruptFileError(f"a cloud of {width}x{height} points has {len(data)} bytes, which is too few")
    array: NDArray[Any] = np.ndarray((height, width), points, data, strides=(step, points.itemsize)).reshape(-1)
    number = _number_of(points)
    return np.stack([array[name].astype(number) for name in names], axis=1) if names else np.empty((0, 0), number)


# ---- packets
def movie_of(packets: Sequence[tuple[int, bytes]], codec: str, /) -> tuple[bytes, int] | None:
    """The packets of a video as an MP4 file, not one of them decoded.

    Args:
        packets: (nanoseconds, bytes) of each, in the order in which they are decoded.
        codec: FFmpeg's name.

    Returns:
        The file, and how many packets before the first keyframe are left out; None where there is no keyframe.

    Raises:
        CorruptFileError: They are no packets of this codec.
    """
    import av

    first = next((number for number, (_, data) in enumerate(packets) if is_key(codec, data)), None)
    if first is None:
        return None
    packets = packets[first:]
    # Where frames are decoded in another order than they are shown in, a packet is there before its frame is shown.
    in_order = sorted(time for time, _ in packets)
    origin = in_order[0]
    ticks = [_tick(time - origin) for time, _ in packets]
    decode = _rising([_tick(time - origin) for time in in_order])
    if [time for time, _ in packets] == in_order:
        ticks = decode
    late = max(two - one for one, two in zip(ticks, decode, strict=True))
    with tempfile.TemporaryDirectory(prefix="seqlake-mcap-") as folder:
        path = Path(folder) / "video.mp4"
        try:
            _write(path, packets, codec, ticks, decode, late)
        except (av.FFmpegError, ValueError, IndexError) as error:
            raise CorruptFileError(f"packets of {codec} cannot be put into MP4: {error}") from None
        return path.read_bytes(), first


def _tick(time: int) -> int:
    return (time * TICKS + 500_000_000) // 1_000_000_000


def _rising(ticks: list[int]) -> list[int]:
    for number in range(1, len(ticks)):
        ticks[number] = max(ticks[number], ticks[number - 1] + 1)
    return ticks


def _write(
    path: Path, packets: Sequence[tuple[int, bytes]], codec: str, ticks: list[int], decode: list[int], late: int
) -> None:
    import io

    import av

    head = io.BytesIO(_ivf(codec, packets[0][1]) if codec in {"vp9", "av1"} else packets[0][1])
    form = "ivf" if codec in {"vp9", "av1"} else codec
    steps = [two - one for one, two in pairwise(decode)]
    with av.open(head, format=form) as container, av.open(str(path), "w", format="mp4", options=_FASTSTART) as out:
        stream: Any = out.add_stream_from_template(container.streams.video[0], opaque=True)
        stream.time_base = Fraction(1, TICKS)
        for number, (_, data) in enumerate(packets):
            packet: Any = av.Packet(data)
            packet.pts, packet.dts = ticks[number], decode[number] - late
            packet.duration = steps[number] if number < len(steps) else (steps[-1] if steps else TICKS // 30)
            packet.time_base, packet.is_keyframe, packet.stream = Fraction(1, TICKS), is_key(codec, data), stream
            out.mux(packet)


def _ivf(codec: str, data: bytes) -> bytes:
    """One packet in the plain container of VP9 and AV1, of which demuxers learn the rest."""
    name = b"VP90" if codec == "vp9" else b"AV01"
    head = struct.pack("<4sHH4sHHIIII", b"DKIF", 0, 32, name, 16, 16, 30, 1, 1, 0)
    return head + struct.pack("<IQ", len(data), 0) + data


def is_key(codec: str, data: bytes, /) -> bool:
    """Whether decoding may begin at a packet.

    Example:
        >>> is_key("h264", bytes([0, 0, 0, 1, 0x65]))
        True
    """
    if codec == "vp9":
        return bool(data) and data[0] >> 6 == 2 and not data[0] & (0x0C if (data[0] >> 4) & 3 != 3 else 0x06)
    if codec == "av1":
        return any(kind == 1 for kind in _obus(data))
    units = [data[at + 3] for at in _starts(data) if at + 3 < len(data)]
    if codec == "hevc":
        return any(16 <= (unit >> 1) & 0x3F <= 21 for unit in units)
    return any(unit & 0x1F == 5 for unit in units)


def _starts(data: bytes) -> list[int]:
    places, at = [], data.find(b"\0\0\1")
    while at >= 0:
        places.append(at)
        at = data.find(b"\0\0\1", at + 3)
    return places


def _obus(data: bytes) -> list[int]:
    """The types of the units of an AV1 packet, as far as they can be followed."""
    kinds, at = list[int](), 0
    while at < len(data) and len(kinds) < 64:
        head = data[at]
        kinds.append((head >> 3) & 15)
        at += 2 if head & 4 else 1
        if not head & 2:
            break
        size = shift = 0
        while at < len(data) and shift < 56:
            size |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                break
        at += size
    return kinds


__all__ = ["cloud_type", "codec_of", "draft", "is_key", "movie_of", "picture_of", "points_of"]
