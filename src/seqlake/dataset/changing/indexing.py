"""Folders of Parquet that others wrote become datasets: where the steps of each row lie is found out and kept."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from seqlake.abilities import AdoptsByTasks, ability
from seqlake.arguments import DATASET, takes
from seqlake.dataset import progress
from seqlake.dataset.writing import rehearsal
from seqlake.dataset.writing.staging import open_for_changes
from seqlake.executors import executor_if_asked, in_order
from seqlake.files.room import room_in
from seqlake.shares import begun
from seqlake.versions.messages import saying

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.dataset.dataset import Dataset
    from seqlake.executors import Executor
    from seqlake.protocols import Version


@takes(dataset=DATASET)
def index(
    dataset: Dataset,
    /,
    *,
    message: str | None = None,
    on: str | Executor | None = None,
    workers: int | None = None,
) -> Version:
    """Make a folder of Parquet that others wrote a versioned dataset whose windows are read without decoding.

    The files stay as they are. Only columns written `PLAIN` and uncompressed can be indexed; `repack` writes the rest
    anew. What is a versioned dataset already stays as it is.

    Args:
        dataset: In its newest version, which it then shows.
        message: What the commit is for; `versions()` shows it.
        on: What looks into the files: `"processes"`, `"ray"` or an `Executor`, some files a task; by default this
            process alone. `Resumable` and `Share` keep what is finished.
        workers: Tasks at a time of what `on` names.

    Returns:
        The version that has them.

    Raises:
        ReadOnlyError: The folder cannot be written, or its files lie elsewhere than in `data/`.
        ValidationError: An id is missing or stands twice.

    Example:
        ```python
        sl.index(sl.open("theirs"), on="processes", workers=8)
        ```
    """
    executor = executor_if_asked(on, workers=workers)
    table = ability(dataset.table, AdoptsByTasks)
    with saying(message):
        if executor is None or table is None or dataset.refresh().id != -1 or rehearsal.under_way():
            open_for_changes(dataset)
            return dataset.version
        with ExitStack() as stack, room_in(dataset.location):

            def mapped(function: Callable[[Any], Any], tasks: Sequence[Any]) -> Sequence[Any]:
                files = hashlib.sha256(repr(tasks).encode()).hexdigest()
                identity = {"source": dataset.source.fingerprint, "files": files}
                run = stack.enter_context(begun(executor, "index", identity))
                with progress.counting(len(tasks), "index", unit="tasks") as step:
                    return in_order(run, function, tasks, done=lambda _: step())

            table.adopt_by(mapped)
    dataset.refresh()
    return dataset.version
