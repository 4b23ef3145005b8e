"""The page of the soak says what was counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqlake.errors import DecodeError

from .. import counting  # noqa: TID252 - tests are no package that could be named


def test_each_end_of_a_call_is_counted_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise DecodeError("damaged")

    counts = counting.Counts(reader="shelf")
    counts.of(lambda: 1, lambda answer: answer == 1)
    counts.of(lambda: 2, lambda answer: answer == 1, name="one more")
    counts.of(refuse, bool)
    counts.of(lambda: {}["x"], bool, name="no key")
    assert (counts.mutations, counts.right, counts.refused) == (4, 1, 1)
    assert counts.bad() == {"bare": 1, "wrong": 1}
    assert [text.partition(":")[0] for text in counts.examples] == ["one more", "no key"]

    counts.keep()  # nobody asked
    monkeypatch.setenv(counting.VARIABLE, str(tmp_path / "results"))
    counts.keep()
    counting.Counts(reader="shelf", mutations=6, crash=2, cause="glass").keep()
    page = tmp_path / "page.md"
    page.write_text(f"# Soak\n\n{counting.BEGIN}\nold\n{counting.END}\n\nend\n")
    counting.main(str(tmp_path / "results"), str(page))
    text = page.read_text()
    assert "| shelf | 10 | 1 | 1 | 2 | 0 | 0 | 1 | 1 |" in text
    assert "- shelf: glass" in text
    assert "old" not in text
    assert text.startswith("# Soak\n")
    assert text.endswith("\n\nend\n")
    assert [json.loads(line)["reader"] for line in (tmp_path / "results").read_text().splitlines()] == ["shelf"] * 2


def test_what_was_not_read_to_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"planned": ["a", "b", "c"]},
        {"ended": "a", "how": "passed", "cpu": 60.0},
        {"ended": "b", "how": "skipped: no peer", "cpu": 0.0},
    ]
    monkeypatch.setenv(counting.SEED, "3")
    text = counting.table([json.dumps(one) for one in lines])
    assert "in 1 minutes of CPU, seed 3" in text
    assert text.endswith("- `b`: skipped: no peer\n- `c`: did not come to its end")
    assert counting.seeded(4) != 4
    monkeypatch.setenv(counting.SHARE, "0.02")
    assert counting.many(1000) == 20
