"""Completion in real shells: a terminal, a script that was sourced, and the key TAB."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import seqlake as sl

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; source {script}"),
    "fish": (["fish", "--no-config", "-i"], "source {script}"),
}
PATIENCE = 60.0  # a busy machine; whoever completes nothing is found by what is printed, not by time
CONTROL = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-B0-9]|[=>])")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset `recordings`, and a program `seqlake` on the path."""
    schema = sl.Schema({"reward": pa.float64(), "operator": pa.string()})
    ds = sl.create(tmp_path / "recordings", schema)
    ds.append([{"sequence_id": "alpha"}, {"sequence_id": "beta"}])
    program = tmp_path / "bin" / "seqlake"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom seqlake.cli import main\nmain()\n")
    program.chmod(0o755)
    return tmp_path


class Terminal:
    """A shell that takes what is typed."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.seen = ""
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        environment = {
            **os.environ,
            "PATH": path,
            "TERM": "xterm",
            "HOME": str(folder),
            "LINES": "40",
            "COLUMNS": "300",
        }
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """What the shell prints, without colours and cursors, up to a pattern."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            match = re.search(pattern, CONTROL.sub("", self.seen), re.MULTILINE)
            if match is not None:
                return match
            if select.select([self.fd], [], [], 0.2)[0]:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
        raise AssertionError(f"{pattern!r} did not come; there was:\n{CONTROL.sub('', self.seen)[-2000:]}")

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("shell", SHELLS)
def test_paths_ids_and_columns_are_completed(run, folder: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = folder / "completion"
    script.write_text(run("completion", shell).out)
    command, begin = SHELLS[shell]
    terminal = Terminal(command, folder)
    try:
        ready = "(math 20 + 3)" if shell == "fish" else "$((20 + 3))"
        terminal.type(f"{begin.format(script=script)}; echo READY{ready}\n")
        terminal.until(r"READY23")
        for number, (typed, whole) in enumerate(
            [
                ("seqlake inf\t", "seqlake info"),
                ("seqlake info rec\t", "seqlake info recordings/?"),
                ("seqlake show recordings al\t", "seqlake show recordings alpha"),
                ("seqlake ls recordings --columns operator,re\t", "seqlake ls recordings --columns operator,reward"),
                ("seqlake ls recordings --sort op\t", "seqlake ls recordings --sort operator"),
                ("seqlake set recordings alpha rew\t1.5", "seqlake set recordings alpha reward=1.5"),
                ("seqlake set recordings alpha reward=1 op\tno", "seqlake set recordings alpha reward=1 operator=no"),
                ("seqlake set recordings alpha reward=\t2", "seqlake set recordings alpha reward=2"),
            ]
        ):
            terminal.type(typed)
            terminal.type(f"\x01echo DONE{number} \n")  # to the beginning of the line
            terminal.until(rf"^\r*DONE{number} {whole} *\r*$")
    finally:
        terminal.close()
