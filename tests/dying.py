"""Processes that die on purpose: forked off one that imported all, killed before their n-th change of a disk, or later.

A script calls `serve` with what it does once; a test talks to it through `Zygote`. `dying.c`, preloaded, stands between
it and libc, so that native code dies as ours does.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).with_suffix(".c")


def built(folder: Path) -> Path:
    """The library, compiled."""
    library = folder / "dying.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class Zygote:
    """A process that begins others.

    Args:
        script: What it runs; it ends in `serve`.
        *arguments: Of the script.
        library: See `built`.
    """

    def __init__(self, script: Path, *arguments: str, library: Path) -> None:
        paths = [str(SOURCE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "LD_PRELOAD": str(library),
            "RUST_BACKTRACE": "0",
        }
        command = [sys.executable, str(script), *arguments]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, **said: Any) -> dict[str, Any]:
        """What became of one: `killed`, `steps` that it took, `seconds`, and what it `said`.

        Args:
            **said: `at`, the step that it dies before, from 0; `after`, seconds after which it is killed; the rest is
                for the script.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(said), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert not answer["failed"], "it raised; the traceback is on stderr"
        return answer

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


def serve(act: Callable[..., object]) -> None:
    """For each line of stdin a process that acts once; what became of it is answered in JSON.

    Args:
        act: Called with `arm` and what the line says. `arm(folder)` is called where counting is to begin.
    """
    for line in sys.stdin:
        said = json.loads(line)
        at, after = said.pop("at", -1), said.pop("after", None)
        hearing, saying = os.pipe()
        child = os.fork()
        if child == 0:
            _child(act, saying, at, said)
        os.close(saying)
        with os.fdopen(hearing, "rb", buffering=0) as pipe:
            begun = pipe.read(1)  # nothing where it died before it armed
            if begun and after is not None and not select.select([pipe], [], [], after)[0]:
                os.kill(child, signal.SIGKILL)
            heard = pipe.read().strip()
        _, status = os.waitpid(child, 0)
        failed = os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
        answer = {"killed": os.WIFSIGNALED(status), "failed": failed, **(json.loads(heard) if heard else {})}
        print(json.dumps(answer), flush=True)


def _child(act: Callable[..., object], saying: int, at: int, said: dict[str, Any]) -> None:
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.dying_steps.restype = ctypes.c_long
    code = 1

    def arm(folder: str) -> None:
        os.write(saying, b"+")
        library.dying_arm(folder.encode(), ctypes.c_long(at))

    try:
        result = act(arm, **said)
        os.write(saying, json.dumps({"steps": library.dying_steps(), "said": result}).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
