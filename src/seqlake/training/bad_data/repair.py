"""Batches with bad samples made whole: masked, or with other samples in their places; shape and steps never change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.bad_data.damage import BadSample
from seqlake.training.mixtures.parts import chosen, exchanged
from seqlake.training.randomness import ATTEMPTS
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.engine import TrainingEngine
    from seqlake.training.samples import Batch, Samples


class Repair:
    """What becomes of bad samples in one pass.

    Args:
        engine: The source through the window; its settings say what to do, its ledger is written.
        others: (epochs, sample numbers, attempt) -> samples to be tried in their places.
        batch_of: Samples -> a batch of them, and place in it -> what only making it showed to be bad.
    """

    def __init__(
        self,
        engine: TrainingEngine,
        others: Callable[[Ints, Ints, int], Samples],
        batch_of: Callable[[Samples], tuple[Batch, Mapping[int, Sequence[Harm]]]],
    ) -> None:
        self._engine = engine
        self._others = others
        self._batch_of = batch_of
        self._substitutes = engine.settings.on_error.policy == "substitute"

    def signals(self, samples: Samples, /) -> Samples:
        """The samples, their shards opened: those whose cells are bad marked, or others in their places."""
        self._engine.opened.visit(samples.rows)
        substituted = np.zeros(len(samples.rows), np.bool_) if self._substitutes else None
        bad = np.flatnonzero(self._engine.opened.harmed(samples.rows))
        if not len(bad):
            return replace(samples, substituted=substituted)
        entries = {
            place: self._entries(samples, place, self._engine.opened.harms_of(int(samples.rows[place])))
            for place in bad.tolist()
            if samples.valid[place]
        }
        rows, anchors, valid = samples.rows.copy(), samples.anchors.copy(), samples.valid.copy()
        valid[bad] = False

        def filled(places: Ints, others: Samples) -> NDArray[np.bool_]:
            assert substituted is not None
            good = ~self._engine.opened.harmed(others.rows)
            mended = places[good]
            self._engine.opened.pin(others.rows[good])
            rows[mended], anchors[mended] = others.rows[good], others.anchors[good]
            valid[mended], substituted[mended] = samples.valid[mended], True
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
        entries = {place: [*known] for place, known in samples.bad.items()}
        for place, harms in framed.items():
            # What is wrong with a substitute is no news: the sample that should be there has its entry.
            if not substituted[place] and (valid[place] or place in entries):
                entries.setdefault(place, []).extend(self._entries(samples, place, harms))
        bad = np.array(sorted(framed), np.int64)
        valid[bad] = substituted[bad] = False

        def filled(places: Ints, others: Samples) -> NDArray[np.bool_]:
            values, harmed = self._batch_of(others)
            good = ~self._engine.opened.harmed(others.rows)
            good[list(harmed)] = False
            mended = places[good]
            self._exchange(batch, mended, values, good)
            valid[mended], substituted[mended] = samples.valid[mended], True
            return good

        if self._substitutes:
            if len(bad):
                self._fill(samples, bad, filled)
            batch["substituted"] = substituted
        self._engine.ledger.add(
            replace(entry, action="substituted" if substituted[place] else "masked")
            for place in sorted(entries)
            for entry in entries[place]
        )

    def _exchange(self, batch: Batch, places: Ints, others: Batch, good: NDArray[np.bool_]) -> None:
        """Put the good ones of other samples into some places of a batch."""
        window = self._engine.settings.window
        if isinstance(window, Whole) and not self._engine.surveys[0].by_row:  # of other lengths
            if len(places):
                batch.update(exchanged(batch, places, chosen(others, np.flatnonzero(good), window), window))
            return
        for name, values in others.items():
            if isinstance(values, list):
                for place, which in zip(places.tolist(), np.flatnonzero(good).tolist(), strict=True):
                    batch[name][place] = values[which]
            else:
                batch[name][places] = values[good]

    def _fill(self, samples: Samples, bad: Ints, filled: Callable[[Ints, Samples], NDArray[np.bool_]]) -> None:
        """Try one sample after the other for bad places; `filled` says which of them were good."""
        for attempt in range(ATTEMPTS):
            others = self._others(samples.epochs[bad], samples.numbers[bad], attempt)
            self._engine.opened.visit(others.rows)
            bad = bad[~filled(bad, others)]
            if not len(bad):
                return

    def _entries(self, samples: Samples, place: int, harms: Sequence[Harm]) -> list[BadSample]:
        name = self._engine.opened.id_of(int(samples.rows[place]))
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
