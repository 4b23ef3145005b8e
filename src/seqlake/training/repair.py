"""Batches with bad samples made whole: masked, or with other samples in their places; shape and steps never change."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.batches import Assembler
from seqlake.training.damage import BadSample
from seqlake.training.frames import FrameStream
from seqlake.training.randomness import Random

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.batches import Batch, Samples
    from seqlake.training.damage import Harm
    from seqlake.training.order import Shuffle
    from seqlake.training.prepared import Prepared

_ATTEMPTS = 16  # samples tried for one place; if all are bad it stays masked
_NEAR = 1 << 12  # in source order: substitutes come from so many samples around


class Substitutes:
    """Which samples may stand in for a bad one: a pure function of seed, epoch and sample number.

    They lie in the same lane and block, so that their shards are in use anyway.

    Args:
        samples: Samples of an epoch.
        shuffle: Lanes and block; None in source order.
        seed: The loader's.
    """

    def __init__(self, *, samples: int, shuffle: Shuffle | None, seed: int) -> None:
        self._samples = samples
        self._lanes = 1 if shuffle is None else min(shuffle.lanes, max(1, samples))
        self._block = _NEAR if shuffle is None else shuffle.block
        digest = hashlib.blake2b(f"seqlake substitutes {seed}".encode(), digest_size=8).digest()
        self._seed = int.from_bytes(digest, "little")

    def of(self, epochs: Ints, numbers: Ints) -> Ints:
        """[n] samples of epochs -> [n, attempts] sample numbers of the same epochs, to be tried in turn."""
        words = Random(seed=self._seed, epochs=epochs, numbers=numbers).words(_ATTEMPTS)
        lane, place = numbers % self._lanes, numbers // self._lanes
        length = self._samples // self._lanes + (lane < self._samples % self._lanes)
        first = place // self._block * self._block
        span = np.minimum(self._block, length - first)
        chosen = first[:, None] + (words % span[:, None].astype(np.uint64)).astype(np.int64)
        found: Ints = chosen * self._lanes + lane[:, None]
        return found


class Repair:
    """What becomes of bad samples in one pass.

    Args:
        prepared: The dataset through the window; its settings say what to do, its ledger is written.
        located: (epochs, sample numbers) -> the samples.
        sharers: How many processes decode on this machine's cores.
    """

    def __init__(self, prepared: Prepared, located: Callable[[Ints, Ints], Samples], *, sharers: int = 1) -> None:
        self._prepared = prepared
        self._located = located
        self._sharers = sharers
        self._substitutes = prepared.settings.on_error.policy == "substitute"
        self._choice = Substitutes(
            samples=len(prepared.survey.axis), shuffle=prepared.shuffle, seed=prepared.settings.seed
        )

    def signals(self, samples: Samples, /) -> Samples:
        """The samples, their shards opened: those whose cells are bad marked, or others in their places."""
        self._prepared.opened.visit(samples.rows)
        substituted = np.zeros(len(samples.rows), np.bool_) if self._substitutes else None
        bad = np.flatnonzero(self._harmed(samples.rows))
        if not len(bad):
            return replace(samples, substituted=substituted)
        harms = self._prepared.opened.harms
        entries = {
            place: self._entries(samples, place, harms[int(samples.rows[place])])
            for place in bad.tolist()
            if samples.valid[place]
        }
        rows, anchors, valid = samples.rows.copy(), samples.anchors.copy(), samples.valid.copy()
        valid[bad] = False

        def filled(places: Ints, others: Samples) -> NDArray[np.bool_]:
            assert substituted is not None
            good = ~self._harmed(others.rows)
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
            return
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
            for name, values in found.items():
                batch[name][own] = values[good]
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

    def _fill(self, samples: Samples, bad: Ints, filled: Callable[[Ints, Samples], NDArray[np.bool_]]) -> None:
        """Try one sample after the other for bad places; `filled` says which of them were good."""
        choices = self._choice.of(samples.epochs[bad], samples.numbers[bad])
        for attempt in range(choices.shape[1]):
            others = self._located(samples.epochs[bad], choices[:, attempt])
            self._prepared.opened.visit(others.rows)
            left = ~filled(bad, others)
            bad, choices = bad[left], choices[left]
            if not len(bad):
                return

    def _assembled(self, samples: Samples) -> tuple[Batch, NDArray[np.bool_]]:
        """A batch of some samples, and which of them are good."""
        prepared, size = self._prepared, len(samples.rows)
        assembler = Assembler(prepared.survey, prepared.opened)
        batch = assembler.batch(assembler.prepare(samples, size=size), 0)
        good = ~self._harmed(samples.rows)
        if prepared.survey.framed:
            with closing(FrameStream(prepared, sharers=self._sharers)) as frames:
                batch.update(frames.take(frames.begin(samples.rows, samples.anchors)))
                good[list(frames.harmed)] = False
        return batch, good

    def _harmed(self, rows: Ints) -> NDArray[np.bool_]:
        harms = self._prepared.opened.harms
        if not harms:
            return np.zeros(len(rows), np.bool_)
        return np.isin(rows, np.fromiter(harms, np.int64, len(harms)))

    def _entries(self, samples: Samples, place: int, harms: Sequence[Harm]) -> list[BadSample]:
        name = self._prepared.source.schema.id
        ids = None if name is None else self._prepared.opened.values[name].values
        found = None if ids is None else ids[samples.rows[place]]
        return [
            BadSample(
                sequence_id=None if found is None else str(found),
                column=harm.column,
                file=harm.file,
                error=harm.error,
                epoch=int(samples.epochs[place]),
                sample=int(samples.numbers[place]),
                start=int(samples.anchors[place]),
            )
            for harm in harms
        ]
