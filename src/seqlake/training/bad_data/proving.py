"""Pages under windows compared before they are read (`verify="first"`), and what becomes of those that are damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CorruptFileError
from seqlake.training.bad_data.damage import Harm
from seqlake.training.bad_data.salvage import lose

if TYPE_CHECKING:
    from threading import Lock

    from seqlake.protocols import Ints
    from seqlake.training.cells import Cells
    from seqlake.training.opened import Opened
    from seqlake.training.survey import Survey


def prove(opened: Opened, survey: Survey, rows: Ints, /, *, lock: Lock, tolerant: bool) -> None:
    """Compare the pages that these rows are in and that this process did not look at yet.

    Args:
        opened: The shards in use, those of the rows open.
        survey: The dataset.
        rows: Of the dataset.
        lock: Held meanwhile: loaders made from each other share what is open.
        tolerant: Rows of damaged pages count as null and stand in `opened.harms`.

    Raises:
        CorruptFileError: A page is not what was written.
    """
    pending = [cells for cells in opened.cells.values() if cells.proofs]
    if not pending:
        return
    rows = np.unique(rows)
    shards = opened.shard_of(rows)
    with lock:
        for cells in pending:
            for shard in np.intersect1d(shards, list(cells.proofs)).tolist():
                own = rows[shards == shard]
                if tolerant:
                    key = survey.shards[shard].key
                    _lose_pages(opened, cells, shard, own, file=key.rpartition("#")[0] or key)
                else:
                    cells.prove(shard, own)


def _lose_pages(opened: Opened, cells: Cells, shard: int, rows: Ints, *, file: str) -> None:
    proof, low = cells.proofs[shard], cells.low[shard]
    there = rows[cells.steps[rows] > 0]
    pages = proof.pages(cells.address[there] - low)
    for page in np.unique(pages).tolist():
        try:
            cells.prove(shard, there[pages == page])
        except CorruptFileError as error:
            # All rows of the page: what a selection has of it, in its order.
            every = np.arange(opened.rows(shard).start, opened.rows(shard).stop)
            every = every[cells.steps[every] > 0]
            every = every[proof.pages(cells.address[every] - low) == page]
            cells.steps[every] = 0
            lose(opened, every, Harm.of(error, column=cells.name, file=file))
