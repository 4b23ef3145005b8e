"""Where a lake table lies and what is known of its shards; shared by the table and its snapshots, picklable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.files.credentials import Storage
from seqlake.files.stores import open_store
from seqlake.tables._lakes.identity import LakeIds
from seqlake.versions.indexes import KeptPackets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from seqlake.protocols import Store
    from seqlake.tables._lakes.sidecar import Sidecar


class Shelf:
    """The store of a table's root with its sidecar, ids and packet indexes, each read once in a process.

    Args:
        root: The table's folder, an absolute path or URI.
        storage: obstore's options; never printed.
        label: What tells this table from others of the same root.
        sidecar: What makes the sidecar of a store; picklable.
        named_by: Where the root was read, if nobody gave it: in a catalog that may be somebody else's.
    """

    def __init__(
        self,
        root: str,
        /,
        *,
        storage: Mapping[str, str] | None = None,
        label: str = "",
        sidecar: Callable[[Store], Sidecar],
        named_by: str | None = None,
    ) -> None:
        self.root = root
        self.label = label
        self.storage = None if storage is None else Storage(storage)
        self.store: Store = open_store(root, storage=storage, named_by=named_by)
        self._make, self._named_by = sidecar, named_by
        self.sidecar = sidecar(self.store)
        self.ids = LakeIds(self.store, self.sidecar, storage=self.storage)
        self.packets = KeptPackets(self.store)

    def __getstate__(self) -> dict[str, Any]:
        kept = {"root": self.root, "storage": self.storage, "label": self.label}
        return {**kept, "sidecar": self._make, "named_by": self._named_by}

    def __setstate__(self, state: dict[str, Any]) -> None:
        root = state.pop("root")
        self.__init__(root, **state)  # type: ignore[misc]  # the rest is derived

    def __repr__(self) -> str:
        return f"Shelf({self.root!r})"
