"""What one file may cost, and how much memory there is: a file may lie about its size, or mean harm.

Sizes are compared with the bytes that are there, and with these limits, before memory is taken. A limit is a number of
the environment: workers of loaders and commands have it like the process that they come from.
"""

from __future__ import annotations

import operator
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from seqlake.errors import CorruptFileError, DecodeError, SeqlakeError

_SMALL = 256 << 20  # nobody is asked about
_CGROUP = Path("/sys/fs/cgroup/memory.max")


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
        amount: int,
        what: str,
        /,
        *,
        most: int | None = None,
        path: str | None = None,
        error: type[SeqlakeError] = DecodeError,
    ) -> None:
        """Refuse what is above it.

        Args:
            amount: How much there is, or would be.
            what: The file or picture, as the message begins.
            most: What holds instead of the limit itself, where it is derived from it.
            path: The file.
            error: What is raised.

        Raises:
            DecodeError: There are more.
        """
        most = self.value if most is None else most
        if amount > most:
            raise error(
                f"{what} would take {amount:,} {self.unit}; the limit is {most:,}.",
                path=path,
                hint="If you trust it, raise the limit: "
                f"export {self.name}={self.value * (amount // max(most, 1) + 1)}",
            )


DECODED = Limit(name="SEQLAKE_MAX_DECODED", default=5 << 28, unit="bytes of decoded cells")
"""Of a Parquet page, dictionary or row, beyond the bytes that are stored; our writer takes cells of 1 GiB."""


def refuse_more_than_memory(nbytes: int, location: str, /) -> None:
    """Refuse to hold at once what somebody declared and this machine could not hold.

    Args:
        nbytes: How much.
        location: Of what, for the message.

    Raises:
        CorruptFileError: It is more than half of the memory there is, and more than 256 MiB.
    """
    if nbytes > _SMALL and nbytes > (room := machine_memory() // 2):
        raise CorruptFileError(
            f"{location}: {nbytes:,} bytes of it would have to be held at once, more than half of this machine's "
            f"memory ({room:,} bytes).",
            path=location,
            hint="If it is really that large, read it in parts, or on a larger machine.",
        )


def limit_of(name: str, value: object, /) -> int:
    """A limit in bytes, as somebody gave it.

    Args:
        name: Of the argument.
        value: What was given.

    Raises:
        ValueError: No whole number of at least one.
    """
    try:
        limit = operator.index(value)  # type: ignore[arg-type]  # what is none raises
    except TypeError:
        limit = 0
    if isinstance(value, bool) or limit < 1:
        raise ValueError(f"{name}: expected a number of bytes, as 1 << 30, found {value!r}.")
    return limit


def machine_memory() -> int:
    """Bytes of memory that this process may have: the machine's, or what a container or `ulimit -v` leaves of it."""
    limits = [1 << 40]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if sys.platform != "win32":
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limits.append(int(_CGROUP.read_text(encoding="ascii")))
    return min(one for one in limits if one > 0)


def free_memory() -> int:
    """Bytes that this process may still take: what is free of the machine, its container and its `ulimit -v`."""
    amounts = [machine_memory()]
    with suppress(OSError, ValueError, IndexError):  # not Linux
        counters = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        amounts.append(
            1024 * sum(int(counters[name].split()[0]) for name in ("MemAvailable", "SwapFree") if name in counters)
        )
    if sys.platform != "win32":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        with suppress(OSError, ValueError, IndexError):
            taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            amounts += [limit - taken] * (limit > 0)
    with suppress(OSError, ValueError):
        taken = int(_CGROUP.with_name("memory.current").read_text(encoding="ascii"))
        counters = dict(
            line.split() for line in _CGROUP.with_name("memory.stat").read_text(encoding="ascii").splitlines()
        )
        amounts.append(int(_CGROUP.read_text(encoding="ascii")) - taken + int(counters.get("inactive_file", 0)))
    return max(0, min(amounts))
