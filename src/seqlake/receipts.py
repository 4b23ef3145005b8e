"""The work folder of a run that may be interrupted: what was planned, its state, one receipt for every finished task.

```text
<work>/plan.json            what is done, to refuse a folder of another run
<work>/sink.json            what is needed to go on, as the transaction that is written to
<work>/part-00000.json      a receipt; it is there only when the task is finished
```

Receipts are JSON, never pickles: a work folder may lie in a shared place.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import protocols
from seqlake.errors import SeqlakeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_RECORDS = {
    kind.__name__: kind
    for kind in (protocols.Copied, protocols.Side, protocols.Transaction, protocols.Version, protocols.Written)
}
_DATES: dict[str, type[date | time]] = {"datetime": datetime, "date": date, "time": time}
_PLAIN = {*_DATES, "timedelta", "Decimal"}
_TAG = "$"
_RECEIPT = re.compile(r"part-(\d{5,})\.json")
_OURS = re.compile(r"(part-\d{5,}|sink|plan)\.json(\.tmp)?")


class WorkFolder:
    """A folder that outlives the process.

    Args:
        folder: Made on first use.
    """

    def __init__(self, folder: Path, /) -> None:
        self.folder = folder

    @property
    def begun(self) -> bool:
        """Whether an earlier run began to write."""
        return (self.folder / "sink.json").exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within the block no other process works with this folder.

        Raises:
            SeqlakeError: One does.
        """
        if importlib.util.find_spec("fcntl") is None:
            yield
            return
        fcntl = importlib.import_module("fcntl")
        self.folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise SeqlakeError(
                    f"Another process works with the folder {self.folder}: it runs the same conversion.",
                    path=str(self.folder),
                    hint="Wait until it ends.",
                ) from None
            yield
        finally:
            # The file goes while it is locked: whoever waits for nothing finds no folder in use.
            if self.folder.is_dir() and {path.name for path in self.folder.iterdir()} == {"lock"}:
                (self.folder / "lock").unlink(missing_ok=True)
                self.folder.rmdir()
            os.close(fd)

    def is_of(self, identity: Mapping[str, object], /) -> bool:
        """Whether what lies here is of this run; false, too, where it cannot be read."""
        try:
            return bool(self._load("plan.json") == dict(identity))
        except SeqlakeError:
            return False

    def begin(self, identity: Mapping[str, object], /) -> None:
        """Take the folder for one run, or go on with the same one.

        Args:
            identity: What makes it the same run, as source, target and parts.

        Raises:
            SeqlakeError: It belongs to another run.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        held = self._load("plan.json")
        if held is None:
            self._save("plan.json", dict(identity))
        elif not isinstance(held, Mapping):
            raise SeqlakeError(f"{self.folder / 'plan.json'} is not a file of a work folder.", path=str(self.folder))
        elif held != dict(identity):
            differs = sorted(str(k) for k in {*held, *identity} if held.get(k) != identity.get(k))
            raise SeqlakeError(
                f"The work folder {self.folder} belongs to another run: {', '.join(differs)} differ.",
                path=str(self.folder),
                hint="Give another work folder, or delete this one to begin anew.",
            )

    def state(self) -> Any:
        """What `keep_state` kept, or None."""
        return self._load("sink.json")

    def keep_state(self, state: object, /) -> None:
        """Keep what is needed to go on."""
        self._save("sink.json", state)

    def receipts(self) -> dict[int, Any]:
        """The receipts of all finished parts, by part."""
        names = {path.name: _RECEIPT.fullmatch(path.name) for path in self.folder.glob("part-*.json")}
        return {int(ours[1]): self._load(name) for name, ours in sorted(names.items()) if ours is not None}

    def keep(self, part: int, receipt: object, /) -> None:
        """Keep the receipt of a finished part, durably."""
        self._save(f"part-{part:05d}.json", receipt)

    def clear(self) -> None:
        """Remove what this class wrote, and the folder if nothing else is in it."""
        if not self.folder.is_dir():
            return
        # First what says that a run has begun: one that is killed here is over, and nothing of it is done again. Last
        # what says whose the rest is: receipts without it would be taken for those of the next run.
        (self.folder / "sink.json").unlink(missing_ok=True)
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == "plan.json"):
            if _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)
        if {path.name for path in self.folder.iterdir()} == {"lock"}:
            return  # which `locked` removes
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _load(self, name: str) -> Any:
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return decode(_proven(json.loads(data)))
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise SeqlakeError(
                f"{self.folder / name} is not a file of a work folder: {error}.",
                path=str(self.folder),
                hint="Delete the work folder to begin anew.",
            ) from error

    def _save(self, name: str, value: object) -> None:
        # Replaced at once or not at all: a torn receipt would stand for a part that is not there.
        temporary = self.folder / f"{name}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            held = encode(value)
            json.dump({"value": held, "sha256": _digest(held)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.folder / name)


def _proven(document: Any) -> Any:
    """What a file holds, if it is what was written."""
    if document["sha256"] != _digest(document["value"]):
        raise ValueError("its bytes have changed since they were written")
    return document["value"]


def _digest(held: Any) -> str:
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()


def by_part(receipts: Sequence[object], /) -> list[dict[str, Any]]:
    """Receipts that name their part, in the order of the parts; of two for one part the later counts.

    Args:
        receipts: What the `write` of a sink returned, each a dict with `part`.

    Raises:
        SeqlakeError: One is none, or a part in between has none; nothing may be committed then.

    Example:
        >>> by_part([{"part": 1, "rows": 2}, {"part": 0, "rows": 3}])
        [{'part': 0, 'rows': 3}, {'part': 1, 'rows': 2}]
    """
    ordered: dict[int, dict[str, Any]] = {}
    for receipt in receipts:
        if not isinstance(receipt, dict) or not isinstance(receipt.get("part"), int):
            raise SeqlakeError(f"Expected receipts of a sink, found {receipt!r:.80}; nothing was committed.")
        ordered[receipt["part"]] = receipt
    missing = sorted(set(range(max(ordered, default=-1) + 1)) - set(ordered))
    if missing:
        raise SeqlakeError(
            f"Parts {missing} have no receipt; nothing was committed.", hint="Write them, then commit again."
        )
    return [ordered[part] for part in sorted(ordered)]


def encode(value: object, /) -> Any:
    """A value as JSON: plain values, bytes, dates, and the small records of `seqlake.protocols`.

    Raises:
        TypeError: Another kind of object; sinks give receipts of these.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return {_TAG: "bytes", "value": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "value": [encode(item) for item in value]}
    if isinstance(value, Mapping):
        return {_TAG: "dict", "value": [[encode(key), encode(item)] for key, item in value.items()]}
    return {_TAG: type(value).__name__, "value": _parts(value)}


def _parts(value: object) -> Any:
    """What a date, an exact number or a record is made of, as JSON."""
    if is_date(value):
        return parts_of_date(value)
    if dataclasses.is_dataclass(value) and type(value) is _RECORDS.get(type(value).__name__):
        return {item.name: encode(getattr(value, item.name)) for item in dataclasses.fields(value)}
    raise TypeError(
        f"A receipt is made of plain values, bytes, dates and the records of seqlake.protocols; "
        f"found {type(value).__name__}."
    )


def decode(value: Any, /) -> Any:
    """The value that `encode` encoded."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, held = value[_TAG], value["value"]
    if kind == "bytes":
        return base64.b64decode(held)
    if kind == "tuple":
        return tuple(decode(item) for item in held)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in held}
    if kind in _PLAIN:
        return date_of(kind, held)
    return _RECORDS[str(kind)](**{name: decode(item) for name, item in held.items()})


def is_date(value: object, /) -> bool:
    """Whether it is a date, a time, a span of time or an exact number: what `parts_of_date` takes."""
    return isinstance(value, datetime | date | time | timedelta | Decimal)


def parts_of_date(value: Any, /) -> Any:
    """A date, a time, a span of time or an exact number as JSON.

    Example:
        >>> parts_of_date(timedelta(days=1)), date_of("date", "2026-01-02")
        ([1, 0, 0], datetime.date(2026, 1, 2))
    """
    if isinstance(value, timedelta):
        return [value.days, value.seconds, value.microseconds]
    return str(value) if isinstance(value, Decimal) else value.isoformat()


def date_of(kind: str, held: Any, /) -> Any:
    """What `parts_of_date` was given.

    Args:
        kind: The name of its class.
        held: What that gave.

    Raises:
        KeyError: No such class.
    """
    if kind == "timedelta":
        return timedelta(*held)
    return Decimal(held) if kind == "Decimal" else _DATES[kind].fromisoformat(held)
