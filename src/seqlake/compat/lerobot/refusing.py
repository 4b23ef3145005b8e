"""Names of the official classes that are for recording: asked for here, they say where that is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

_RECORD = "record with lerobot's own class, or write sequences and sl.convert(ds, out, to='lerobot')"
_HUB = "use sl.push(folder, 'hf://datasets/owner/name') and sl.open('hf://datasets/owner/name')"
OF_DATASET: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "add_frame",
            "batch_encoding_size",
            "clear_episode_buffer",
            "create",
            "create_episode_buffer",
            "create_hf_dataset",
            "episode_buffer",
            "episodes_since_last_encoding",
            "finalize",
            "has_pending_frames",
            "image_writer",
            "latest_episode",
            "reader",
            "resume",
            "save_episode",
            "start_image_writer",
            "stop_image_writer",
            "vcodec",
            "writer",
        ),
        _RECORD,
    ),
    **dict.fromkeys(("download", "pull_from_repo", "push_to_hub"), _HUB),
}
"""Name -> what to do instead."""
OF_METADATA: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "create",
            "ensure_readable",
            "finalize",
            "latest_episode",
            "metadata_buffer",
            "metadata_buffer_size",
            "save_episode",
            "save_episode_tasks",
            "update_chunk_settings",
            "update_video_info",
            "writer",
        ),
        _RECORD,
    ),
    "load_metadata": "make another one to read the folder again",
    "pull_from_repo": _HUB,
}


class Refusing(type):
    """Classes that refuse names, too: `LeRobotDataset.create` is one."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            raise _refusal(cls, name, cls)


class Refuses(metaclass=Refusing):
    """Refuses names by a text that says what to do instead; to `hasattr` they are not there."""

    refused: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise _refusal(type(self), name, self)


def _refusal(kind: type, name: str, asked: object) -> AttributeError:
    tables = (one.__dict__.get("refused", {}) for one in kind.__mro__)
    instead = next((table[name] for table in tables if name in table), None)
    if instead is None:
        return AttributeError(f"{kind.__name__!r} has no attribute {name!r}", name=name, obj=asked)
    return AttributeError(f"{kind.__name__} of seqlake reads, and has no {name!r}: {instead}.", name=name, obj=asked)
