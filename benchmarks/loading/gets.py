"""Seconds of plain parallel GETs of some objects: forgotten, or each kept in a file; run as a script.

In a fresh process, as a training run is one: memory that a process has had before costs it nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

PARALLEL = 12


def plain_gets(bucket: str, storage: dict[str, str], sizes: Mapping[str, int], *, target: Path | None = None) -> float:
    """What they take, so many at a time; `sizes` says how many bytes each must give."""
    plan = {"bucket": bucket, "storage": storage, "sizes": sizes, "target": None if target is None else str(target)}
    done = subprocess.run(
        [sys.executable, __file__], input=json.dumps(plan), capture_output=True, text=True, check=True, timeout=300
    )
    return float(done.stdout)


def main(plan: dict[str, Any]) -> None:
    import obstore

    bucket = obstore.store.S3Store(plan["bucket"], **plan["storage"])

    def get(name: str) -> int:
        data = obstore.get(bucket, name).bytes()
        if plan["target"] is not None:
            Path(plan["target"], name.rpartition("/")[2]).write_bytes(data)
        return len(data)

    began = time.perf_counter()
    with ThreadPoolExecutor(PARALLEL) as pool:
        assert sum(pool.map(get, plan["sizes"])) == sum(plan["sizes"].values())
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
