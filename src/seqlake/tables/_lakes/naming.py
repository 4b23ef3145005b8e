"""Names for versions of a lake that has none of its own: one small file each, beside the table.

A vacuum of ours honours them. Nobody else's can know them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from seqlake.files.checksums import digest_of, seal
from seqlake.files.stores import list_without_links
from seqlake.versions import names
from seqlake.versions.format import FORMAT, damaged, refuse_unknown_format
from seqlake.versions.small_files import can_list, read, read_many
from seqlake.versions.tags import check_free, is_name, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from seqlake.protocols import Store


class VersionNames(Protocol):
    """Where a lake table keeps the names of its versions."""

    def tags(self) -> Mapping[str, int | str]:
        """Name -> the id of its version."""

    def find(self, name: str, /) -> int | str | None:
        """The version that has a name."""

    def put(self, name: str, version: int | str, /, *, move: bool) -> None:
        """TagExistsError where another version has it and it is not to be moved; VersionNotFoundError."""

    def remove(self, name: str, /) -> None:
        """VersionNotFoundError where no version has it."""


class TagFiles:
    """Names of versions in `_seqlake/tags/`.

    Args:
        store: The table's root.
        label: What tells this table from others of the same root; empty where a root has one table.
        confirm: Raises VersionNotFoundError where a version expired, also by a vacuum that is under way.
    """

    def __init__(self, store: Store, /, *, label: str, confirm: Callable[[int | str], None]) -> None:
        self._store = store
        self._folder = f"{names.TAGS}/{label}" if label else names.TAGS
        self._confirm = confirm

    def tags(self) -> dict[str, int | str]:
        """Name -> version, by name; a server that cannot list its files shows none, and `find` finds them."""
        known = _read_all(self._store, self._folder)
        return {one["tag"]: one["version"] for path, one in sorted(known.items()) if path == self._path(one["tag"])}

    def find(self, name: str, /) -> int | str | None:
        """The version that has a name."""
        if not is_name(name):
            return None
        data = read(self._store, self._path(name))
        version: int | str | None = None if data is None else _parsed(data, self._path(name))["version"]
        return version

    def put(self, name: str, version: int | str, /, *, move: bool) -> None:
        """Give a version a name; it is looked at again afterwards, so that a vacuum cannot miss it."""
        self._confirm(version)
        before = self.find(name)
        self._check_free(name, before, version, move=move)
        if before == version:
            return
        try:
            self._write(name, version, if_absent=not move)
        except FileExistsError:  # somebody was faster
            self._check_free(name, self.find(name), version, move=False)
        try:
            self._confirm(version)
        except LookupError:
            if before is None:
                self._store.delete([self._path(name)])
            else:
                self._write(name, before, if_absent=False)
            raise

    def remove(self, name: str, /) -> None:
        """Take a name away."""
        if self.find(name) is None:
            raise unknown(self.tags(), name, path=self._store.root)
        self._store.delete([self._path(name)])

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.json"

    def _check_free(self, name: str, before: int | str | None, version: int | str, *, move: bool) -> None:
        check_free({} if before is None else {name: before}, name, version, move=move, path=self._store.root)

    def _write(self, name: str, version: int | str, *, if_absent: bool) -> None:
        data = seal({"format": FORMAT, "tag": name, "version": version})
        temporary = names.temporary(names.new_transaction())
        self._store.put(self._path(name), data, if_absent=if_absent, temporary=temporary)
        self._store.sync(self._folder)


def pinned(store: Store, /) -> frozenset[int | str]:
    """The versions that have a name in any table of a root.

    Raises:
        DamagedTableError: A file of a name cannot be read, so nobody knows what it protects.
    """
    return frozenset(one["version"] for one in _read_all(store, names.TAGS).values())


def _read_all(store: Store, folder: str) -> dict[str, dict[str, Any]]:
    if not can_list(store):
        return {}
    listed = [path for path, _ in list_without_links(store, folder) if path.endswith(".json")]
    read_ = zip(listed, read_many(store, listed), strict=True)
    return {path: _parsed(data, path) for path, data in read_ if data is not None}


def _parsed(data: bytes, path: str) -> dict[str, Any]:
    if digest_of(data) is None:
        raise damaged(path, "its bytes are not those that its digest was made of")
    document = json.loads(data)
    refuse_unknown_format(document.get("format"), path=path)
    if not is_name(document.get("tag")) or not isinstance(document.get("version"), int | str):
        raise damaged(path, "it names no version")
    return dict(document)
