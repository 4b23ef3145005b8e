"""CRC-32C against published values and a bytewise one."""

from __future__ import annotations

import random

import pytest

from seqlake.formats.rlds.tfrecord import crc32c, masked

PUBLISHED = {  # RFC 3720, appendix B.4
    b"\x00" * 32: 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    b"123456789": 0xE3069283,
    b"": 0,
}


@pytest.mark.parametrize("data", PUBLISHED, ids=len)
def test_published_values(data):
    assert crc32c(data) == PUBLISHED[data]


BORDERS = [0, 1, 3, 4, 5, 31, 32, 33, 7047, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 17]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("size", BORDERS)
def test_every_border_of_its_parts(tfds, size):
    data = random.Random(size).randbytes(size)
    assert masked(crc32c(data)) == tfds.crc(data)
    assert masked(crc32c(memoryview(data))) == tfds.crc(data)


def test_random_sizes(tfds):
    rng = random.Random(1)
    for _ in range(40):
        data = rng.randbytes(rng.randrange(60_000))
        assert masked(crc32c(data)) == tfds.crc(data)


def test_one_flipped_bit_is_noticed():
    data = bytearray(random.Random(2).randbytes(20_000))
    whole = crc32c(data)
    for bit in range(0, len(data) * 8, 997):
        data[bit // 8] ^= 1 << bit % 8
        assert crc32c(data) != whole
        data[bit // 8] ^= 1 << bit % 8
