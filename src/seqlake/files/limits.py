"""What one file may cost: it says itself how large it is unpacked, and whoever wrote it may lie, or mean harm.

Sizes are compared with the bytes that are there, and with these limits, before memory is taken. A limit is a number of
the environment: workers of loaders and commands have it like the process that they come from.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from seqlake.errors import DecodeError, SeqlakeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most that is taken on.

    Attributes:
        name: Of the variable that raises it.
        default: Where it is not set.
        unit: What is counted.
    """

    name: str
    default: int
    unit: str

    @property
    def value(self) -> int:
        """What holds now.

        Raises:
            SeqlakeError: The variable is no whole number.
        """
        text = os.environ.get(self.name, "")
        try:
            return int(text) if text else self.default
        except ValueError:
            raise SeqlakeError(f"{self.name}: expected a whole number of {self.unit}, found {text!r}.") from None

    @property
    def is_set(self) -> bool:
        """Whether the user set it."""
        return bool(os.environ.get(self.name))

    def hold(
        self,
        found: int,
        what: str,
        /,
        *,
        most: int | None = None,
        path: str | None = None,
        error: type[SeqlakeError] = DecodeError,
    ) -> None:
        """Refuse what is above it.

        Args:
            found: How many there are, or would be.
            what: The file or picture, as the message begins.
            most: What holds instead of the limit itself, where it is derived from it.
            path: The file.
            error: What is raised.

        Raises:
            DecodeError: There are more.
        """
        most = self.value if most is None else most
        if found > most:
            raise error(
                f"{what} would take {found:,} {self.unit}; the limit is {most:,}.",
                path=path,
                hint=f"If you trust it, raise the limit: export {self.name}={self.value * (found // max(most, 1) + 1)}",
            )


DECODED = Limit(name="SEQLAKE_MAX_DECODED", default=5 << 28, unit="bytes of decoded cells")
"""Of a Parquet page, dictionary or row, beyond the bytes that are stored; our writer takes cells of 1 GiB."""
