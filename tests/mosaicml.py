"""MosaicML's own package in an environment of its own: tests hand it code and values, and get values back.

It needs other versions of numpy and torch than this project, so it lives in another process. The environment is what
`benchmarks/peers/setup` makes, or the interpreter that SEQLAKE_MOSAICML_PYTHON names. This file is both ends: run as a
script, it is the process that works there.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from typing import Self

ROOT = Path(__file__).parents[1]
VARIABLE = "SEQLAKE_MOSAICML_PYTHON"


def python() -> str | None:
    """The interpreter that has the package; None where there is none."""
    made = ROOT / "benchmarks" / ".venv-mosaicml" / "bin" / "python"
    return os.environ.get(VARIABLE) or (str(made) if made.exists() else None)


class Official:
    """A process with the package; begins when it is first needed."""

    def __init__(self, interpreter: str) -> None:
        self._interpreter = interpreter
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, code: str, /, **values: Any) -> Any:
        """Run code there; `values` are its variables, and what it leaves in `result` comes back."""
        process = self._begun()
        assert process.stdin is not None
        assert process.stdout is not None
        _send(process.stdin, (code, values))
        error, result = _receive(process.stdout)
        assert not error, f"In the official package's process:\n{error}"
        return result

    def _begun(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [self._interpreter, "-W", "ignore", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks" / "peers"), "CUDA_VISIBLE_DEVICES": ""},
            )
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait(30)


def _send(stream: BinaryIO, value: object) -> None:
    data = pickle.dumps(value, protocol=4)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(stream: BinaryIO) -> Any:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(stream.read(*struct.unpack("<Q", head)))


def _serve() -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the package prints is no answer
    import official  # noqa: F401 - benchmarks/peers/official.py: the package, imported once

    while True:
        try:
            code, values = _receive(requests)
        except EOFError:
            return
        scope = {**values, "result": None}
        try:
            exec(compile(code, "<test>", "exec"), scope)
            _send(answers, ("", scope["result"]))
        except Exception:
            _send(answers, (traceback.format_exc(), None))


if __name__ == "__main__":
    _serve()
