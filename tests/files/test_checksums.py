"""The quickest CRC-32 that is there gives the numbers that files carry."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqlake.files import checksums


@given(st.binary(max_size=5000), st.integers(0, 4000), st.integers(0, 2**32 - 1))
def test_it_is_the_crc_of_zlib(data: bytes, first: int, before: int) -> None:
    part = memoryview(data)[first:]
    assert checksums.crc32(part) == zlib.crc32(part)
    assert checksums.crc32(part, before) == zlib.crc32(part, before)


def test_without_the_quick_library_it_is_zlib_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert importlib.reload(checksums).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(checksums)
