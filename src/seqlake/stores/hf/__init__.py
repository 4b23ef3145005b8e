"""Datasets on the Hugging Face Hub, `hf://datasets/owner/name[@revision][/path]`: listed and read, never written.

`huggingface_hub` knows the login, the commit that a branch or tag means, what a commit holds, and the files that were
downloaded before. Bytes are read by our own client for web servers, on the address by which the Hub serves a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.stores.hf.store import HubStore

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["open", "pinned"]


def open(root: str, /, *, storage: Mapping[str, str] | None = None) -> HubStore:  # noqa: A001 - as `StoreFormat` asks
    """The store of a dataset on the Hub, or of a folder in it; nothing is read yet.

    Args:
        root: As in `hf://datasets/owner/name@v1.0/data`. Without a revision it is the branch `main`.
        storage: `hf_token`: by default that of the login, or of `HF_TOKEN`; `"false"` sends none. `hf_endpoint`: by
            default that of `HF_ENDPOINT`, else `https://huggingface.co`. `allow_hosts` as for web servers.

    Raises:
        ValueError: No such address.
        MissingDependencyError: `huggingface_hub` is not installed.

    Example:
        ```python
        open("hf://datasets/lerobot/pusht").blob("meta/info.json").size
        ```
    """
    return HubStore(root, storage=storage)


def pinned(location: str, /, *, storage: Mapping[str, str] | None = None) -> str:
    """The same location at the commit that its revision means now, so that what is opened stays what it is.

    Args:
        location: Of a dataset on the Hub, or of something in it.
        storage: As for `open`.

    Raises:
        DatasetNotFoundError: No such dataset, or no such revision.
        AccessDeniedError: It is gated, or the login is refused.

    Example:
        ```python
        pinned("hf://datasets/lerobot/pusht")  # 'hf://datasets/lerobot/pusht@0b1e0e0...'
        ```
    """
    return HubStore(location, storage=storage).pinned()
