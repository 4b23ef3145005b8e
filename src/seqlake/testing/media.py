"""The contract of a media decoder as tests: inherit `DecoderTests` and give it a `decoder`."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from seqlake import protocols
from seqlake.media import Frames, LazyDecoder
from seqlake.testing.strict import Strict

if TYPE_CHECKING:
    from seqlake.protocols import Decoder


class _Seen(Frames):
    """What has frames, over a decoder that lets through only what the protocol names."""

    def __init__(self, decoder: Decoder) -> None:
        self._held = LazyDecoder()
        self._decoder = decoder

    def _open(self) -> Any:
        return Strict(self._decoder, protocols.Decoder)


class DecoderTests:
    """Laws of `Decoder`.

    The fixture `decoder` gives one that is open on at least eight frames or samples.

    Example:
        ```python
        class TestVideo(DecoderTests):
            @pytest.fixture
            def decoder(self):
                return video.open(Source(blob=data, column=Video()))
        ```
    """

    @pytest.fixture
    def decoder(self) -> Decoder:
        raise NotImplementedError("Give this fixture in the class that inherits these tests.")

    def test_times_belong_to_frames_and_ascend(self, decoder: Decoder) -> None:
        assert len(decoder) >= 8
        assert decoder.pts.shape == (len(decoder),)
        assert (np.diff(decoder.pts) > 0).all()
        assert isinstance(decoder.time_base, Fraction)
        assert decoder.time_base > 0

    def test_frames_come_in_the_order_asked_repeats_included(self, decoder: Decoder) -> None:
        every = decoder.read(np.arange(len(decoder)))
        assert len(every) == len(decoder)
        last = len(decoder) - 1
        wanted = np.array([last, 0, 5, 5, 0, 1])
        np.testing.assert_array_equal(decoder.read(wanted), every[wanted])
        assert len(decoder.read(wanted[:0])) == 0
        assert decoder.read(wanted[:0]).shape[1:] == every.shape[1:]

    def test_it_writes_where_it_is_told(self, decoder: Decoder) -> None:
        wanted = np.array([4, 2])
        expected = decoder.read(wanted)
        out = np.zeros_like(expected)
        assert decoder.read(wanted, out=out) is out
        np.testing.assert_array_equal(out, expected)
        with pytest.raises(ValueError, match="out"):
            decoder.read(wanted, out=out[:1])

    @pytest.mark.parametrize("beyond", [-1, 0])
    def test_what_is_not_there_is_an_index_error(self, decoder: Decoder, beyond: int) -> None:
        with pytest.raises(IndexError):
            decoder.read(np.array([beyond if beyond < 0 else len(decoder)]))

    def test_nobody_asks_for_more_than_the_protocol(self, decoder: Decoder) -> None:
        """A view reads frames by number and by time over a proxy that lets nothing else through."""
        seen = _Seen(decoder)
        every = decoder.read(np.arange(len(decoder)))
        assert len(seen) == len(decoder)
        assert np.array_equal(seen.pts, decoder.pts)
        np.testing.assert_array_equal(seen[[3, 1, 1, -1]], every[[3, 1, 1, -1]])
        np.testing.assert_array_equal(seen[2:5], every[2:5])
        seconds = [float((decoder.pts[at] - decoder.pts[0]) * decoder.time_base) for at in (4, 2)]
        np.testing.assert_array_equal(seen.at(seconds=seconds), every[[4, 2]])

    def test_it_can_be_closed(self, decoder: Decoder) -> None:
        decoder.read(np.array([0]))
        decoder.close()
        decoder.close()
