"""What validation has to say: findings as data, raising as the caller's choice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from seqlake.errors import ValidationError, in_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that validation has to say.

    Example:
        >>> print(Finding(code="R301", severity="error", message="the id is empty", location="part-0.parquet"))
        error R301  part-0.parquet: the id is empty
    """

    code: str
    """The rule, as in `R301`; every code is explained in the reference."""

    severity: Severity
    """`error`: breaks the format; `warning`: probably not meant; `note`: worth knowing."""

    message: str
    """What was expected and what was found."""

    location: str = ""
    """The file or object, relative to the dataset's root."""

    sequence_id: str = ""
    """The row, where there is one."""

    column: str = ""
    """The column, where there is one."""

    step: int | None = None
    """The time step, where there is one."""

    def __str__(self) -> str:
        step = f"step {self.step}" if self.step is not None else ""
        place = " · ".join(part for part in (self.location, self.sequence_id, self.column, step) if part)
        text = f"{place}: {self.message}" if place else self.message
        return in_line(f"{self.severity} {self.code}  {text}")

    def to_json(self) -> dict[str, Any]:
        """The finding as a JSON object.

        Example:
            >>> Finding(code="R305", severity="warning", message="NaN", column="action").to_json()["column"]
            'action'
        """
        return asdict(self)


class Report:
    """All findings of one validation.

    Args:
        findings: In the order they were made.
        subject: What was validated.
        depth: How deep it was looked.

    Example:
        >>> report = Report([Finding(code="R305", severity="warning", message="NaN")])
        >>> report.ok, len(report.warnings)
        (True, 1)
    """

    def __init__(self, findings: Iterable[Finding], /, *, subject: str = "", depth: str = "") -> None:
        self.findings: tuple[Finding, ...] = tuple(findings)
        self.subject = subject
        self.depth = depth

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that break the format."""
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are probably not meant."""
        return tuple(f for f in self.findings if f.severity == "warning")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that are worth knowing."""
        return tuple(f for f in self.findings if f.severity == "note")

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.errors

    def raise_for_errors(self) -> None:
        """Raise if there is an error.

        Raises:
            ValidationError: Carries every finding, not only the errors.

        Example:
            >>> Report([Finding(code="R301", severity="error", message="the id is empty")]).raise_for_errors()
            Traceback (most recent call last):
                ...
            seqlake.errors.ValidationError: 1 errors
              error R301  the id is empty
        """
        if self.errors:
            lines = "".join(f"\n  {finding}" for finding in self.errors[:10])
            more = f"\n  and {len(self.errors) - 10} more" if len(self.errors) > 10 else ""
            raise ValidationError(f"{len(self.errors)} errors{lines}{more}", findings=self.findings)

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object.

        Example:
            >>> report = Report([Finding(code="R305", severity="warning", message="NaN")], depth="rows").to_json()
            >>> report["depth"], report["errors"], report["findings"][0]["code"]
            ('rows', 0, 'R305')
        """
        return {
            "subject": self.subject,
            "depth": self.depth,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "notes": len(self.notes),
            "findings": [finding.to_json() for finding in self.findings],
        }

    def __repr__(self) -> str:
        head = f"Report: {len(self.errors)} errors, {len(self.warnings)} warnings"
        depth = f" at depth {self.depth}" if self.depth else ""
        lines = "".join(f"\n  {finding}" for finding in self.findings[:20])
        more = f"\n  and {len(self) - 20} more" if len(self) > 20 else ""
        return f"{head}{depth}{lines}{more}"

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(visible(text))}</td>" for text in _cells(finding)) + "</tr>"
            for finding in self.findings[:200]
        )
        return f"<p>{len(self.errors)} errors, {len(self.warnings)} warnings</p><table>{rows}</table>"


def _cells(finding: Finding) -> tuple[str, ...]:
    place = (finding.location, finding.sequence_id, finding.column)
    return (finding.severity, finding.code, *place, finding.message[:500])
