"""What became of inputs that were changed on purpose, counted by reader, in one format for every room's soak.

A test makes one `Counts`, counts into it and calls `keep`: where SEQLAKE_SOAK_RESULTS names a file, one JSON line is
appended to it. `tests/conftest.py` adds which tests there were and how each ended, so that one that was skipped, failed
or was cut off is told. Run as a script, this file makes the table of `benchmarks/results/soak.md` out of such lines.

SEQLAKE_SOAK_SEED changes every reader's changes; SEQLAKE_SOAK_SHARE, as in 0.02, makes fewer of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlake.errors import SeqlakeError

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "SEQLAKE_SOAK_RESULTS"
SEED, SHARE = "SEQLAKE_SOAK_SEED", "SEQLAKE_SOAK_SHARE"
BEGIN, END = "<!-- mutations: begin -->", "<!-- mutations: end -->"
BAD = ("crash", "hang", "over_2_gb", "bare", "wrong")


def seeded(own: int) -> int:
    """A test's own first seed, or another one where the caller asked for other changes."""
    return own + int(os.environ.get(SEED) or 0) * 1_000_003


def many(count: int) -> int:
    """How many changes of a long test are made; all of them but where the caller asked for fewer."""
    return max(1, round(count * float(os.environ.get(SHARE) or 1)))


def tell(**line: object) -> None:
    """One JSON line for the page, where somebody asked for it."""
    place = os.environ.get(VARIABLE)
    if place:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")  # one short write: tests of several processes share the file


@dataclass(kw_only=True)
class Counts:
    """Of one reader.

    Attributes:
        reader: What read, as the table names it: `mds, zstd`.
        mutations: Changed inputs that were read.
        right: Answered as if nothing had been changed, or found by `validate`.
        refused: Ended in an error of seqlake's.
        crash: Ended the process.
        hang: Did not come back in time.
        over_2_gb: Took more than 2 GB of memory.
        bare: Ended in an exception that is not seqlake's.
        wrong: Gave another value, and `validate` found nothing.
        cause: Why, where one of the last five is not 0.
        seconds: Of wall time, from the first `Counts` of the process to `keep`.
        examples: The first few of what is bad, to look for.
    """

    reader: str
    mutations: int = 0
    right: int = 0
    refused: int = 0
    crash: int = 0
    hang: int = 0
    over_2_gb: int = 0
    bare: int = 0
    wrong: int = 0
    cause: str = ""
    seconds: float = 0.0
    examples: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic, repr=False)

    def of(self, call: Callable[[], Any], right: Callable[[Any], bool], /, *, name: str = "") -> None:
        """Read one changed input.

        Args:
            call: Reads it.
            right: Whether an answer is fine: the value of the unchanged input, or damage that `validate` finds.
            name: Of the change, to find it again.
        """
        self.mutations += 1
        try:
            answer = call()
        except SeqlakeError:
            self.refused += 1
        except Exception as error:  # what is counted
            self.bare += 1
            self._note(f"{name}: {type(error).__name__}: {error}")
        else:
            fine = right(answer)
            self.right += fine
            self.wrong += not fine
            if not fine:
                self._note(f"{name}: wrong value")

    def bad(self) -> dict[str, int]:
        """The counts that ought to be 0 and are not."""
        return {name: getattr(self, name) for name in BAD if getattr(self, name)}

    def keep(self) -> None:
        """One JSON line for the page, where somebody asked for it."""
        self.seconds = round(time.monotonic() - self.began, 1)
        tell(**{name: value for name, value in asdict(self).items() if name != "began"})

    def _note(self, text: str) -> None:
        if len(self.examples) < 10:
            self.examples.append(text[:300])


def summed(lines: list[str]) -> dict[str, dict[str, Any]]:
    """The counts of each reader, from lines of one or several tests."""
    known = {one.name for one in fields(Counts)} - {"reader", "cause", "examples", "began"}
    found: dict[str, dict[str, Any]] = {}
    for one in _read(lines, "reader"):
        row = found.setdefault(one["reader"], {**dict.fromkeys(known, 0), "causes": []})
        for name in known:
            row[name] += one.get(name, 0)
        if one.get("cause") and one["cause"] not in row["causes"]:
            row["causes"].append(one["cause"])
    return dict(sorted(found.items()))


def unfinished(lines: list[str]) -> list[str]:
    """Tests that did not pass, and why; one that was begun and never ended was cut off."""
    ended = {one["ended"]: one["how"] for one in _read(lines, "ended")}
    planned = dict.fromkeys(test for one in _read(lines, "planned") for test in one["planned"])
    told = {**dict.fromkeys(planned, "did not come to its end"), **ended}
    return [f"- `{test}`: {how}" for test, how in told.items() if how != "passed"]


def _read(lines: list[str], kind: str) -> list[dict[str, Any]]:
    """The lines that have this key."""
    found = [json.loads(line) for line in lines if line.strip()]
    return [one for one in found if kind in one]


def table(lines: list[str]) -> str:
    """The section of the page."""
    rows = summed(lines)
    when, seconds = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", [one["cpu"] for one in _read(lines, "ended")]
    lasted = f" in {sum(seconds) / 60:.0f} minutes of CPU" if seconds else ""
    lasted += f", seed {os.environ.get(SEED) or 0}"
    lasted += f", {os.environ[SHARE]} of the usual counts" if os.environ.get(SHARE) else ""
    heads = ["reader", "mutations", "right", "refused", "crash", "hang", "over 2 GB", "bare exception"]
    text = [
        f"{when}, {sum(row['mutations'] for row in rows.values()):,} changed inputs{lasted}.",
        "",
        f"| {' | '.join([*heads, 'wrong, `validate` clean'])} |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for reader, row in rows.items():
        cells = [f"{row[name]:,}" for name in ("mutations", "right", "refused", *BAD)]
        text.append(f"| {' | '.join([reader, *cells])} |")
    causes = [f"- {reader}: {'; '.join(row['causes'])}" for reader, row in rows.items() if row["causes"]]
    missing = unfinished(lines)
    text += ["", "What is not 0, by cause:", "", *causes] if causes else []
    return "\n".join([*text, *(["", "Not read, or not to the end:", "", *missing] if missing else [])])


def main(results: str, page: str) -> None:
    """Put the table of these results into the page, between its two marks."""
    place = Path(page)
    before, _, rest = place.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    made = table(Path(results).read_text(encoding="utf-8").splitlines())
    place.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
