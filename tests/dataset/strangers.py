"""Reads what a stranger sent, in a process with little memory, and prints what became of each attempt as JSON."""

from __future__ import annotations

import contextlib
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


def read_all(location: str) -> int:
    import seqlake as sl

    return sl.open(location).to_arrow().num_rows


def shown(folder: Path) -> dict[str, str]:
    """What commands, reprs and errors print of a dataset whose names steer terminals."""
    import click.testing

    import seqlake as sl
    from seqlake.cli import main

    told = {}
    for command in ("info", "ls", "files", "validate", "schema", "stats", "versions"):
        with click.testing.CliRunner().isolation() as (out, err, *_):
            with contextlib.suppress(SystemExit):
                main([command, str(folder)])
            told[command] = out.getvalue().decode() + err.getvalue().decode()
    ds = sl.open(folder, allow_buckets=[])
    [view] = [one for one in ds if "\x1b" in one.id]
    told |= {"view": repr(view), "report": str(ds.validate(depth="files")), "frames": repr(view["pic"])}
    try:
        view["pic"][0]
    except sl.errors.SeqlakeError as error:
        told["error"] = str(error)
    return {f"shown: {name}": text for name, text in told.items()}


def main(folder: Path, *catalogs: str) -> None:
    import seqlake as sl
    from seqlake.formats.l5kit.store import open_store

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    told: dict[str, str] = {}
    ds = sl.open(folder / "arm", allow_buckets=[])
    rows = ds.select("sequence_id", "kind").to_arrow().to_pylist()
    for row in rows:
        name, column = row["sequence_id"], row["kind"]
        one = ds.where(ids=[name])
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
    for path in sorted(folder.glob("*.zip")):
        told[path.name] = ended(lambda path=path: sl.scan(path).to_arrow().num_rows)
        told[f"{path.name}, rows"] = ended(lambda path=path: open_store(str(path)).agents[:5])
    for place in catalogs:
        told[place] = ended(lambda place=place: read_all(place))
        told[f"{place}, scan"] = ended(lambda place=place: len(sl.scan(place)))
    lied = sl.open(folder / "forged")
    told["forged index"] = ended(lambda: lied.lengths("action").tolist())
    loader = sl.Loader(lied, window={"action": range(1)}, batch_size=4, shuffle=False)
    told["forged index, loader"] = ended(lambda: sum(int(one["valid"].sum()) for one in loader))
    told["forged index, validate"] = "a finding" if lied.validate(depth="rows").errors else "nothing"
    print(json.dumps(told | shown(folder / "arm")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
