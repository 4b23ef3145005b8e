"""What every benchmark's report has: when and where it ran, what was to be reached, and its two files."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def conditions() -> dict[str, Any]:
    """The head of a report."""
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
        "python": f"Python {platform.python_version()}",
        "load_before": os.getloadavg()[0],
    }


class Checks(list[dict[str, Any]]):
    """What was to be reached, and what was."""

    def check(self, what: str, found: float | None, target: float, *, at_most: bool = False) -> None:
        """Add one; nothing where nothing was measured."""
        if found is not None:
            met = found <= target if at_most else found >= target
            self.append({"what": what, "found": round(found, 3), "target": target, "met": met})


def verdicts(checks: list[dict[str, Any]]) -> list[str]:
    """A table of them."""
    rows = [f"| {c['what']} | {c['found']:g} | {c['target']:g} | {'met' if c['met'] else 'missed'} |" for c in checks]
    return ["", "| | found | target | |", "|---|---|---|---|", *rows]


def save(out: Path, report: dict[str, Any], page: str) -> None:
    """Write the report as JSON and its page beside it, and print the page."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    out.with_suffix(".md").write_text(page)
    print(page)
