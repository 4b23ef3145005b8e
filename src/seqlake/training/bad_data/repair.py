"""Batches with bad samples made whole: masked, or with other samples in their places; shape and steps never change."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.bad_data.damage import BadSample
from seqlake.training.bad_data.substitutes import ATTEMPTS
from seqlake.training.mixtures.parts import chosen, exchanged
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.batches import Batch, Samples
    from seqlake.training.prepared import Prepared


class Repair:
    """What becomes of bad samples in one pass.

    Args:
        prepared: The dataset through the window; its settings say what to do, its ledger is written.
        other: (epochs, sample numbers, attempt) -> samples to be tried in their places.
        sharers: How many processes decode on this machine's cores.
    """

    def __init__(self, prepared: Prepared, other: Callable[[Ints, Ints, int], Samples], *, sharers: int = 1) -> None:
        self._prepared = prepared
        self._other = other
        self._sharers = sharers
        self._substitutes = prepared.settings.on_error.policy == "substitute"

    def signals(self, samples: Samples, /) -> Samples:
        """The samples, their shards opened: those whose cells are bad marked, or others in their places."""
        self._prepared.opened.visit(samples.rows)
        substituted = np.zeros(len(samples.rows), np.bool_) if self._substitutes else None
        bad = np.flatnonzero(self._prepared.opened.harmed(samples.rows))
        if not len(bad):
            return replace(samples, substituted=substituted)
        entries = {
            place: self._entries(samples, place, self._prepared.opened.harms_of(int(samples.rows[place])))
            for place in bad.tolist()
            if samples.valid[place]
        }
        rows, anchors, valid = samples.rows.copy(), samples.anchors.copy(), samples.valid.copy()
        valid[bad] = False

        def filled(places: Ints, others: Samples) -> NDArray[np.bool_]:
            assert substituted is not None
            good = ~self._prepared.opened.harmed(others.rows)
            own = places[good]
            self._prepared.opened.pin(others.rows[good])
            rows[own], anchors[own] = others.rows[good], others.anchors[good]
            valid[own], substituted[own] = samples.valid[own], True
            return good

        if substituted is not None:
            self._fill(samples, bad, filled)
        return replace(samples, rows=rows, anchors=anchors, valid=valid, bad=entries, substituted=substituted)

    def finish(self, batch: Batch, samples: Samples, framed: Mapping[int, Sequence[Harm]], /) -> None:
        """Add `valid` to an assembled batch, refill places whose frames are bad, and enter all in the ledger.

        Args:
            batch: The batch; it gets `valid`, and `substituted` where that is the policy.
            samples: The batch's own.
            framed: Position in the batch -> what is wrong with its frames.

        Raises:
            BadDataError: There are more bad samples than the budget allows.
        """
        if not framed and not samples.bad:
            batch["valid"] = samples.valid
            if samples.substituted is not None:
                batch["substituted"] = samples.substituted
        else:
            self._refill(batch, samples, framed)

    def _refill(self, batch: Batch, samples: Samples, framed: Mapping[int, Sequence[Harm]]) -> None:
        valid = batch["valid"] = samples.valid.copy()
        substituted = np.zeros(len(valid), np.bool_) if samples.substituted is None else samples.substituted.copy()
        entries = {place: [*found] for place, found in samples.bad.items()}
        for place, harms in framed.items():
            # What is wrong with a substitute is no news: the sample that should be there has its entry.
            if not substituted[place] and (valid[place] or place in entries):
                entries.setdefault(place, []).extend(self._entries(samples, place, harms))
        bad = np.array(sorted(framed), np.int64)
        valid[bad] = substituted[bad] = False

        def filled(places: Ints, others: Samples) -> NDArray[np.bool_]:
            found, good = self._assembled(others)
            own = places[good]
            self._exchange(batch, own, found, good)
            valid[own], substituted[own] = samples.valid[own], True
            return good

        if self._substitutes:
            if len(bad):
                self._fill(samples, bad, filled)
            batch["substituted"] = substituted
        self._prepared.ledger.add(
            replace(entry, action="substituted" if substituted[place] else "masked")
            for place in sorted(entries)
            for entry in entries[place]
        )

    def _exchange(self, batch: Batch, own: Ints, found: Batch, good: NDArray[np.bool_]) -> None:
        """Put the good ones of other samples into some places of a batch."""
        window = self._prepared.settings.window
        if isinstance(window, Whole) and not self._prepared.surveys[0].by_row:  # of other lengths
            if len(own):
                batch.update(exchanged(batch, own, chosen(found, np.flatnonzero(good), window), window))
            return
        for name, values in found.items():
            if isinstance(values, list):
                for place, which in zip(own.tolist(), np.flatnonzero(good).tolist(), strict=True):
                    batch[name][place] = values[which]
            else:
                batch[name][own] = values[good]

    def _fill(self, samples: Samples, bad: Ints, filled: Callable[[Ints, Samples], NDArray[np.bool_]]) -> None:
        """Try one sample after the other for bad places; `filled` says which of them were good."""
        for attempt in range(ATTEMPTS):
            others = self._other(samples.epochs[bad], samples.numbers[bad], attempt)
            self._prepared.opened.visit(others.rows)
            bad = bad[~filled(bad, others)]
            if not len(bad):
                return

    def _assembled(self, samples: Samples) -> tuple[Batch, NDArray[np.bool_]]:
        """A batch of some samples, and which of them are good."""
        prepared = self._prepared
        assembler = prepared.assembler()
        batch = assembler.batch(assembler.prepare(samples, size=len(samples.rows)), 0)
        good = ~prepared.opened.harmed(samples.rows)
        frames = prepared.frame_stream(sharers=self._sharers)
        if frames is not None:
            with closing(frames):
                batch.update(frames.take(frames.begin(samples.rows, samples.anchors)))
            good[list(frames.harmed)] = False
        return batch, good

    def _entries(self, samples: Samples, place: int, harms: Sequence[Harm]) -> list[BadSample]:
        name = self._prepared.opened.id_of(int(samples.rows[place]))
        return [
            BadSample(
                sequence_id=name,
                column=harm.column,
                file=harm.file,
                error=harm.error,
                epoch=int(samples.epochs[place]),
                sample=int(samples.numbers[place]),
                start=int(samples.anchors[place]),
            )
            for harm in harms
        ]
