"""Questions to a viewer without a socket, from a thread of their own: Playwright leaves a loop running in ours."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqlake.viewer.notebook import Answers


def answer(answers: Answers, asked: dict[str, Any], /) -> tuple[dict[str, Any], list[bytes]]:
    """`answers.answer(asked)`, as the widget asks it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(answers.answer, asked).result()
