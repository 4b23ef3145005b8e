"""Power loss, simulated: what was not synced may be there, or torn, or not.

The calls of one run are recorded; the disk after a loss of power before any of them is then made from a copy of the
disk before the run. Durable is the content of a file after its `fsync`, and a name after an `fsync` of its folder; of
the other names any subset may survive, and of the other contents any beginning. A rename happens or does not: the
file system's part of the bargain.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.files.local import SystemCalls

if TYPE_CHECKING:
    import random


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as it matters to the disk.

    Attributes:
        kind: create, write, sync, sync_folder, link, rename or unlink.
        path: Below the root; the folder for `sync_folder`.
        source: Where a rename came from.
        file: Which file, by a number that its names share.
        data: What was written.
    """

    kind: str
    path: str = ""
    source: str = ""
    file: int = -1
    data: bytes = b""

    @property
    def folders(self) -> set[str]:
        """The folders whose names it changed."""
        return {str(Path(path).parent) for path in (self.path, self.source) if path}


@dataclass(slots=True)
class _Open:
    file: int
    path: str


@dataclass
class RecordedCalls(SystemCalls):
    """Does what it is told, without waiting for disks, and remembers it.

    Attributes:
        root: Of the table.
        calls: What was done, in order.
    """

    root: Path
    calls: list[Call] = field(default_factory=list)
    _files: dict[str, int] = field(default_factory=dict)
    _open: dict[int, _Open] = field(default_factory=dict)
    _next: int = 0

    def _name(self, path: Path) -> str:
        return str(Path(path).relative_to(self.root))

    def _file(self, path: str) -> int:
        """The file of a name; one that was there before the run, or that others wrote, is met here first."""
        if path not in self._files:
            self._files[path] = self._next
            self._next += 1
        return self._files[path]

    def create(self, path: Path, /) -> int:
        """Create the file, and remember it."""
        fd = super().create(path)
        name = self._name(path)
        self._files.pop(name, None)
        self._open[fd] = _Open(self._file(name), name)
        self.calls.append(Call(kind="create", path=name, file=self._files[name]))
        return fd

    def write(self, fd: int, data: memoryview, /) -> int:
        """Write bytes, and remember them."""
        count = super().write(fd, data)
        self.calls.append(Call(kind="write", file=self._open[fd].file, data=bytes(data[:count])))
        return count

    def fsync(self, fd: int, /) -> None:
        """Remember; a shard that other code wrote is met here first, whole but not yet durable."""
        path = Path(f"/proc/self/fd/{fd}").readlink()
        name = self._name(path)
        if name not in self._files:
            file = self._file(name)
            self.calls.append(Call(kind="create", path=name, file=file))
            self.calls.append(Call(kind="write", file=file, data=path.read_bytes()))
        self.calls.append(Call(kind="sync", file=self._files[name]))

    def fsync_folder(self, path: Path, /) -> None:
        """Remember that the folder was synced."""
        self.calls.append(Call(kind="sync_folder", path=self._name(path)))

    def link(self, source: Path, target: Path, /) -> None:
        """Link the file, and remember it."""
        super().link(source, target)
        name = self._name(target)
        self._files[name] = self._known(source)
        self.calls.append(Call(kind="link", path=name, file=self._files[name]))

    def rename(self, source: Path, target: Path, /) -> None:
        """Rename the file, and remember it."""
        file = self._known(source)
        super().rename(source, target)
        old, new = self._name(source), self._name(target)
        self._files.pop(old, None)
        self._files[new] = file
        self.calls.append(Call(kind="rename", path=new, source=old, file=file))

    def unlink(self, path: Path, /) -> None:
        """Unlink the name, and remember it."""
        super().unlink(path)
        self._files.pop(self._name(path), None)
        self.calls.append(Call(kind="unlink", path=self._name(path)))

    def _known(self, path: Path) -> int:
        """The file of a name, whose content was durable before the run if it was not written in it."""
        name = self._name(path)
        if name not in self._files and path.exists():
            file = self._file(name)
            self.calls.append(Call(kind="write", file=file, data=path.read_bytes()))
            self.calls.append(Call(kind="sync", file=file))
        return self._file(name)


def after_power_loss(
    base: Path, target: Path, calls: list[Call], /, *, dice: random.Random, surviving: float = 0.5
) -> Path:
    """Make the folder that is left when power fails after these calls.

    Args:
        base: The folder before the run, all of it durable.
        target: Where to make it.
        calls: What was done before power failed.
        dice: Decides what survives.
        surviving: The chance of a name that was not synced to survive.
    """
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(base, target)
    contents, synced = _contents(calls)
    for at, call in enumerate(calls):
        if call.kind not in {"create", "link", "rename", "unlink"}:
            continue
        durable = any(later.kind == "sync_folder" and later.path in call.folders for later in calls[at + 1 :])
        if not durable and dice.random() >= surviving:
            continue
        path = target / call.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if call.kind == "unlink":
            path.unlink(missing_ok=True)
            continue
        if call.source:
            (target / call.source).unlink(missing_ok=True)
        data = contents.get(call.file, b"")
        if call.file not in synced:
            data = data[: dice.choice([0, len(data) // 2, len(data)])]
        path.unlink(missing_ok=True)  # another name of the file that was there keeps its bytes
        path.write_bytes(data)
    return target


def _contents(calls: list[Call]) -> tuple[dict[int, bytes], set[int]]:
    """What each file held, and which files were synced after their last write."""
    contents: dict[int, bytes] = {}
    synced: set[int] = set()
    for call in calls:
        if call.kind == "create":
            contents.setdefault(call.file, b"")
        elif call.kind == "write":
            contents[call.file] = contents.get(call.file, b"") + call.data
            synced.discard(call.file)
        elif call.kind == "sync":
            synced.add(call.file)
    return contents, synced
