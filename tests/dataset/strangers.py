"""Reads what a stranger sent, in a process with little memory, and prints what became of each attempt as JSON."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMORY = 3 << 30  # of addresses; libraries alone take most of one of them


def ended(call: Callable[[], Any]) -> str:
    """How a call ended: the name of an error of ours, else what is wrong."""
    from seqlake.errors import SeqlakeError

    try:
        found = call()
    except SeqlakeError as error:
        return type(error).__name__
    except BaseException as error:
        return f"bare {type(error).__name__}: {error}"[:300]
    return f"read {found!r}"[:300]


def main(folder: Path) -> None:
    import seqlake as sl

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    told: dict[str, str] = {}
    ds = sl.open(folder / "arm", allow_buckets=[])
    rows = ds.select("sequence_id", "kind").to_arrow().to_pylist()
    for row in rows:
        name, column = row["sequence_id"], row["kind"]
        one = ds.where(f"sequence_id = '{name}'")
        told[name] = ended(lambda name=name, column=column: ds[name][column][0].shape)
        window = {"action": range(1), column: range(1)}
        told[f"{name}, loader"] = ended(
            lambda one=one, window=window: next(iter(sl.Loader(one, window=window, batch_size=1)))
        )
    found = {one.sequence_id for one in ds.validate(depth="decode").findings}
    told |= {
        f"{row['sequence_id']}, validate": "a finding" if row["sequence_id"] in found else "nothing" for row in rows
    }
    for name in ("samples", "drives"):
        told[name] = ended(lambda name=name: sl.scan(folder / name).to_arrow().num_rows)
    told["metadata"] = ended(lambda: sl.open(folder / "metadata"))
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
