"""Pictures converted straight into an array: the same bytes as PyAV's reformatter gives."""

from __future__ import annotations

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from seqlake.media.video import pixels
from seqlake.media.video.pixels import Direct


def picture(width: int, height: int, *, name: str = "yuv420p", matrix: int = 1, span: int = 1) -> av.VideoFrame:
    """Random luma and chroma, with colour tags."""
    planes = np.random.default_rng(matrix).integers(0, 256, (height * 3 // 2, width), dtype=np.uint8)
    frame = av.VideoFrame.from_ndarray(planes, format=name)
    frame.colorspace, frame.color_range = matrix, span
    return frame


def reformatted(frame: av.VideoFrame) -> np.ndarray:
    """What PyAV makes of it."""
    made = VideoReformatter().reformat(frame, format="rgb24", interpolation="BICUBIC", threads=1)
    rows = np.frombuffer(made.planes[0], np.uint8).reshape(frame.height, made.planes[0].line_size)
    return rows[:, : 3 * frame.width].reshape(frame.height, frame.width, 3)


@pytest.fixture(autouse=True)
def _needs_the_library() -> None:
    if pixels._libraries() is None:
        pytest.skip("this build of PyAV keeps its libswscale elsewhere")


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["yuv420p", "yuvj420p"])
@pytest.mark.parametrize("matrix", sorted(pixels._MATRICES))
@pytest.mark.parametrize("span", [0, 1, 2])
def test_every_colour_tag_that_it_takes_gives_the_reformatters_bytes(name: str, matrix: int, span: int) -> None:
    frame = picture(96, 50, name=name, matrix=matrix, span=span)
    out = np.full((3, 50, 96, 3), 7, np.uint8)
    assert Direct(96, 50).convert(frame, out[1])
    np.testing.assert_array_equal(out[1], reformatted(frame))
    assert (out[::2] == 7).all()  # nothing beside it was written


def test_tags_may_change_from_picture_to_picture() -> None:
    direct, out = Direct(64, 48), np.empty((48, 64, 3), np.uint8)
    for matrix, span in [(1, 1), (6, 2), (1, 1), (9, 1)]:
        frame = picture(64, 48, matrix=matrix, span=span)
        assert direct.convert(frame, out)
        np.testing.assert_array_equal(out, reformatted(frame))


@pytest.mark.parametrize(
    ("frame", "shape", "why"),
    [
        (picture(100, 50), (50, 100, 3), "rows whose end its loops would overrun"),
        (picture(96, 50), (25, 48, 3), "another size"),
        (picture(96, 50, matrix=8), (50, 96, 3), "a matrix that it was not compared for"),
        (av.VideoFrame(96, 50, "yuv420p10le"), (50, 96, 3), "ten bits"),
    ],
)
def test_what_it_was_not_compared_for_is_left_to_others(frame: av.VideoFrame, shape: tuple[int, ...], why: str) -> None:
    out = np.full(shape, 7, np.uint8)
    assert not Direct(frame.width, frame.height).convert(frame, out), why
    assert (out == 7).all()


def test_an_array_with_gaps_is_left_to_others() -> None:
    out = np.zeros((50, 96, 4), np.uint8)[..., :3]
    assert not Direct(96, 50).convert(picture(96, 50), out)
