"""Packets of a container's streams of pictures, one after another."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFileError
from seqlake.files.blobs import LocalBlob
from seqlake.media._bytes import BlobBytes
from seqlake.media._containers import open_container

if TYPE_CHECKING:
    from collections.abc import Iterator

    import av
    from av.container import InputContainer
    from av.video.stream import VideoStream

    from seqlake.media.video.packets import PacketIndex
    from seqlake.protocols import Blob


def picture_streams(container: InputContainer) -> list[VideoStream]:
    """Video streams that are no cover art."""
    import av

    return [one for one in container.streams.video if not one.disposition & av.stream.Disposition.attached_pic]


def demuxed(container: InputContainer, streams: list[VideoStream], location: str) -> Iterator[av.Packet[Any]]:
    """All packets of some streams, then an empty one of each.

    Raises:
        CorruptFileError: The container is damaged.
    """
    import av

    try:
        yield from container.demux(streams)
    except (av.FFmpegError, IndexError) as error:  # IndexError: damage looks like a stream that appears half way
        raise CorruptFileError(
            f"{location} is damaged: FFmpeg finds no packets behind some point ({error}). Record or copy it again.",
            path=location,
        ) from error


def packet_reader(index: PacketIndex, file: BlobBytes, location: str, /) -> Iterator[bytes]:
    """The bytes of every packet in decoding order; by demuxing where they do not lie in the file as they are."""
    if index.stream.placed:
        for start, length in zip(index.offset.tolist(), index.length.tolist(), strict=True):
            yield file.between(start, start + length)
        return
    with open_container(file, location) as container:
        stream = picture_streams(container)[index.stream.number]
        for packet in container.demux(stream):
            if packet.size:
                yield bytes(packet)


class _Temporary(LocalBlob):
    """A file that goes when nobody reads it any more."""

    __slots__ = ("__weakref__",)


def in_one_piece(index: PacketIndex, blob: Blob, /) -> tuple[PacketIndex, Blob]:
    """The packets where they can be read by offset: in the file itself, or in a temporary one that goes with its blob.

    Those of MPEG-TS do not lie in the file as they are.
    """
    if index.stream.placed:
        return index, blob
    folder = tempfile.mkdtemp(prefix="seqlake-")
    path = Path(folder) / "packets"
    try:
        with path.open("wb") as file:
            for data in packet_reader(index, BlobBytes(blob), blob.location):
                file.write(data)
        copied = _Temporary(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(copied, shutil.rmtree, folder, ignore_errors=True)
    offset = np.concatenate([[0], np.cumsum(index.length)[:-1]]).astype(np.int64)
    return replace(index, offset=offset), copied
