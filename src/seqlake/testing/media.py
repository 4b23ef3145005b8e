"""The contract of a media decoder as tests: inherit `DecoderTests` and give it a `decoder`."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from seqlake.protocols import Decoder


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

    def test_it_can_be_closed(self, decoder: Decoder) -> None:
        decoder.read(np.array([0]))
        decoder.close()
        decoder.close()
