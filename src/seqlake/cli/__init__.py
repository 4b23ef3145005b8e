"""The command line: one file per command, found by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `seqlake` with these arguments (default: the process's own) and exit.

    Exit codes: 0 done; 1 an error, or `validate` found errors; 2 wrong usage; 3 finished, but something was
    skipped (only with `--on-error skip`); 130 interrupted.
    """
    try:
        from seqlake.cli._interrupts import never_lose_interrupts

        never_lose_interrupts()
        from seqlake.cli._main import run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run(arguments)
