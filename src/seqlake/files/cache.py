"""The user's cache: bytes that can be made again, kept between processes and bounded in size.

It lies in `$XDG_CACHE_HOME/seqlake` (`~/.cache/seqlake`). Nothing here is an error: what cannot be read, was torn or
belongs to other bytes is not there, and what cannot be written is not kept.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.files import fence

if TYPE_CHECKING:
    from seqlake.protocols import Blob

_MAGIC = b"seqlake cache 1\n"
_HASH = 32
_ENTRY = re.compile(r"[0-9a-f]{62}(?:-[0-9a-f]{16}\.tmp)?")


def user_folder() -> Path | None:
    """Where this user's cache lies; None where the system names no home."""
    top = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(top):  # noqa: PTH117 - by the XDG rules a relative one is ignored
        try:
            top = str(Path.home() / ".cache")
        except RuntimeError:
            return None
    return Path(top) / "seqlake"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobCache:
    """What was made of blobs, by their locations: one entry each, believed only for the bytes it was made of.

    Entries lie in 256 folders, and each folder has its share of the limit: what was used longest ago is removed first.
    Locations are not written down, since they may hold signatures; an entry's name is the hash of one.

    Attributes:
        name: What is kept; part of the folder's name.
        limit: Bytes of all entries.

    Example:
        ```python
        cache = BlobCache(name="packets", limit=1 << 30)
        cache.put(blob, made)
        assert cache.get(blob) == made               # None as soon as the blob's size or token is another
        ```
    """

    name: str
    limit: int

    def get(self, blob: Blob, /) -> bytes | None:
        """What is kept of exactly these bytes; None where nothing is."""
        path = self._path(blob)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except OSError:
            return None
        head, body = data[: len(_MAGIC) + 2 * _HASH], data[len(_MAGIC) + 2 * _HASH :]
        if head != _head(blob, body):
            return None
        with suppress(OSError):
            os.utime(path)  # used now
        return body

    def put(self, blob: Blob, data: bytes, /) -> None:
        """Keep this, in place of what was kept of the location before; nothing happens where nothing can be written."""
        path = self._path(blob)
        if path is None or len(data) > self.limit // 256:
            return
        temporary = path.with_name(f"{path.name}-{secrets.token_hex(8)}.tmp")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fence.refuse_links(str(path.parent.parent.parent), f"{self.name}/{path.parent.name}")
            temporary.write_bytes(_head(blob, data) + data)
            temporary.replace(path)  # whole or not at all; a torn one after power loss fails its hash
            self._bound(path.parent, but=path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()

    def _path(self, blob: Blob) -> Path | None:
        top = user_folder()
        if top is None or not blob.token:
            return None
        key = hashlib.sha256(blob.location.encode("utf-8", "surrogatepass")).hexdigest()
        return top / self.name / key[:2] / key[2:]

    def _bound(self, folder: Path, *, but: Path) -> None:
        """Remove entries of a folder, oldest first, until they fit; what else lies there is not ours."""
        entries = []
        for path in folder.iterdir():
            if not _ENTRY.fullmatch(path.name):
                continue
            with suppress(FileNotFoundError):  # another process removes, too
                status = path.lstat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.limit // 256:
                break
            if path != but:
                path.unlink(missing_ok=True)
                total -= size


def _head(blob: Blob, body: bytes) -> bytes:
    """What an entry begins with: which state of which file it was made of, and the hash of what follows."""
    state = f"{blob.location}\n{blob.size}\n{blob.token}".encode("utf-8", "surrogatepass")
    return _MAGIC + hashlib.sha256(state).digest() + hashlib.sha256(body).digest()
