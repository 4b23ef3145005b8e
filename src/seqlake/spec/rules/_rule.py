"""What a rule is: a code, a severity, a title, the section it comes from, and a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec

from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from seqlake.spec.findings import Severity

P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of the format."""

    code: str
    severity: Severity
    title: str
    """What must hold, in one sentence."""

    section: str
    """Where the specification says so."""

    why: str
    """What to know besides."""


RULES: dict[str, Rule] = {}
"""Every rule by its code."""


def rule(
    code: str, severity: Severity, title: str, /, *, section: str
) -> Callable[[Callable[P, Iterator[dict[str, Any]]]], Callable[P, Iterator[Finding]]]:
    """Make a function that yields the facts of each breach into one that yields findings."""

    def decorate(function: Callable[P, Iterator[dict[str, Any]]]) -> Callable[P, Iterator[Finding]]:
        if code in RULES:
            raise ValueError(f"two rules have the code {code}")
        why = (function.__doc__ or "").strip()
        RULES[code] = Rule(code=code, severity=severity, title=title, section=section, why=why)

        def check(*args: P.args, **kwargs: P.kwargs) -> Iterator[Finding]:
            for facts in function(*args, **kwargs):
                yield Finding(code=code, severity=severity, **facts)

        check.__doc__ = f"{title} {function.__doc__ or ''}".strip()
        check.__name__ = function.__name__
        return check

    return decorate
