"""Checkpoints of a log, looked at before deltalake decodes them: some kilobytes of Parquet may stand for gigabytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from seqlake.errors import CorruptFileError
from seqlake.files.limits import DECODED
from seqlake.files.stores import read_all
from seqlake.shards import parquet
from seqlake.shards.parquet.expansion import expansion_of
from seqlake.shards.parquet.footer import read_footer
from seqlake.tables.delta.log import LOG
from seqlake.versions.small_files import can_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.protocols import Blob, Store

_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\..+)?\.parquet")
_SIDECARS = f"{LOG}/_sidecars/"


def hold(store: Store, /) -> None:
    """Refuse checkpoints that would take more memory than a file may.

    Those are looked at that a reader of the newest version takes: backwards from the newest one to the first that is
    whole, and the files beside checkpoints of version 2.

    Args:
        store: The table's root; over HTTP nothing can be listed, and nothing is looked at.

    Raises:
        CorruptFileError: One expands beyond `SEQLAKE_MAX_DECODED`, or is damaged.
    """
    if can_list(store):
        paths = [path for path, _ in store.list(LOG) if path.endswith(".parquet")]
        for path in _taken(paths):
            _hold(store.blob(path))


def adds(store: Store, /) -> Iterator[dict[str, Any]]:
    """The files that checkpoints have, newest checkpoint first, read a batch at a time.

    Raises:
        CorruptFileError: A checkpoint is damaged, or expands beyond the limit.
    """
    for path in sorted((path for path, _ in store.list(LOG) if _NAME.fullmatch(path.rpartition("/")[2])), reverse=True):
        for batch in parquet.open(store.blob(path)).batches(["add"]):
            yield from (one for one in batch.column(0).to_pylist() if one)


def _taken(paths: Sequence[str]) -> Iterator[str]:
    yield from (path for path in paths if path.startswith(_SIDECARS))
    by_version: dict[str, list[re.Match[str]]] = {}
    for path in paths:
        match = _NAME.fullmatch(path.removeprefix(f"{LOG}/"))
        if match is not None:
            by_version.setdefault(match[1], []).append(match)
    for version in sorted(by_version, reverse=True):
        files = by_version[version]
        yield from (f"{LOG}/{one[0]}" for one in files)
        parts = [one for one in files if one[3] is not None]
        if f"{version}.checkpoint.parquet" in {one[0] for one in files} or any(
            sum(one[3] == other[3] for other in parts) >= int(one[3]) for one in parts
        ):
            return


def _hold(blob: Blob) -> None:
    footer, view = read_footer(blob), blob.view()
    data = memoryview(read_all(blob)) if view is None else view
    parts = (expansion_of(footer, one, data[one.start : one.stop]) for group in footer.chunks for one in group)
    more = sum(part.more for part in parts)
    DECODED.hold(more, f"The checkpoint {blob.location}", path=blob.location, error=CorruptFileError)
