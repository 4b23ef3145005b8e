"""Code in a process of its own that may not take more memory than a bound: what hostile files are opened in.

A crash or a hang of a decoder is then a line in a result, not the end of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HEAD = """
import json, resource, sys
import numpy as np, pyarrow as pa
import seqlake as sl
from seqlake.errors import SeqlakeError

def taken():
    "Bytes of address space that are in use."
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def bound(more):
    "From now on, no more memory than that beside what is taken already."
    resource.setrlimit(resource.RLIMIT_AS, (taken() + more, resource.getrlimit(resource.RLIMIT_AS)[1]))

def told(work):
    "The name of the error that it ends with, and its text; what is left of one of Python's own is its class."
    try:
        found = work()
    except Exception as error:
        return [type(error).__name__, str(error), isinstance(error, SeqlakeError)]
    return ["", repr(found)[:200], True]

"""


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    # One arena: threads would reserve address space of their own, which the bound counts.
    return {**os.environ, "MALLOC_ARENA_MAX": "1", "PYTHONPATH": path}


def run(code: str, *arguments: str, timeout: float = 60) -> Any:
    """What the code leaves in `result`; None where the process crashed, ran out of time or ended otherwise."""
    tail = "\nprint(json.dumps(result))\n"
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", HEAD + code + tail, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(done.stderr[-3000:])
        return None
    return json.loads(done.stdout.splitlines()[-1])
