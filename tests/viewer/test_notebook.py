"""The viewer in a notebook: a real kernel carries its messages, and a browser shows what they say."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.viewer import elsewhere

import seqlake as sl
from seqlake.errors import MissingDependencyError
from seqlake.viewer.app import Server
from seqlake.viewer.curating import Drafts
from seqlake.viewer.notebook import Answers, page
from seqlake.viewer.safety import Rules
from seqlake.viewer.tables import Shelf

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("starlette")

CELL = """
import seqlake as sl
link = sl.view(sl.open({place!r}), labels={labels!r})
link
"""


@pytest.fixture
def dataset(tmp_path: Path) -> sl.Dataset:
    ds = sl.create(tmp_path / "arm", {"cam": sl.Video(fps=10), "action": sl.Trajectory(dim=3, fps=10)})
    with ds.writer() as writer:
        for name in ("ep_1", "ep_2"):
            writer.add(name, action=np.ones((20, 3), np.float32), cam=np.zeros((20, 32, 48, 3), np.uint8))
    return ds


@pytest.fixture
def answers(dataset: sl.Dataset, tmp_path: Path) -> Answers:
    rules = Rules(host="127.0.0.1", port=1, token="secret")
    return Answers(Server(Shelf(dataset), rules, Drafts("x", folder=tmp_path / "labels")))


def test_what_the_frame_asks_is_answered(answers: Answers, dataset: sl.Dataset) -> None:
    message, [body] = elsewhere.answer(answers, {"view": "v", "id": 7, "path": "api/rows?limit=1"})
    assert (message["view"], message["id"], message["status"]) == ("v", 7, 200)
    assert json.loads(body)["total"] == 2
    data = dataset.sequence("ep_1")["cam"].read()
    message, [body] = elsewhere.answer(answers, {"path": "media?id=ep_1&col=cam", "headers": {"Range": "bytes=0-9"}})
    assert (message["status"], body, message["headers"]["content-range"]) == (206, data[:10], f"bytes 0-9/{len(data)}")
    posted = {"path": "api/labels", "method": "POST", "body": json.dumps({"set": {"ep_1": {"flag": True}}})}
    assert json.loads(elsewhere.answer(answers, posted)[1][0])["flagged"] == ["ep_1"]
    for path in ("https://example.org/api/rows", "//example.org/api/rows"):
        assert elsewhere.answer(answers, {"path": path})[0]["status"] == 400
    assert elsewhere.answer(answers, {"path": "static/../app.py"})[0]["status"] == 404
    assert elsewhere.answer(answers, {"path": "api/rows", "method": "DELETE"})[0]["status"] == 400


def test_the_page_holds_all_it_needs() -> None:
    text = page(dark=True)
    assert 'data-theme="dark"' in text
    assert "src=" not in text.partition("<body>")[0]
    assert text.count("</script") == text.count("<script>")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_kernel_carries_it(dataset: sl.Dataset, tmp_path: Path) -> None:
    """A cell is run and messages are exchanged as Jupyter and VS Code do."""
    for name in ("anywidget", "ipykernel"):
        pytest.importorskip(name)
    manager, client = pytest.importorskip("jupyter_client.manager").start_new_kernel(kernel_name="python3")
    try:
        cell = CELL.format(place=dataset.location, labels=str(tmp_path / "labels"))
        outputs: list[Any] = []
        client.execute_interactive(cell, timeout=120, output_hook=outputs.append, store_history=True)
        assert not [one["content"] for one in outputs if one["msg_type"] == "error"]
        bundle = next(one["content"]["data"] for one in outputs if one["msg_type"] == "execute_result")
        assert "ep_1" in bundle["text/html"]  # where no widget is shown
        assert bundle["text/plain"].startswith("http://127.0.0.1:")
        model = bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
        asked = [{"view": "v", "page": True}, {"view": "v", "id": 1, "path": "api/rows"}]
        asked.append({"view": "v", "id": 2, "path": "api/signal?id=ep_1&col=action"})
        for content in asked:
            data = {"method": "custom", "content": content}
            client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": model, "data": data}))
        replies: dict[Any, Any] = {}
        while len(replies) < len(asked):
            message = client.get_iopub_msg(timeout=60)
            content = message["content"].get("data", {}).get("content") if message["msg_type"] == "comm_msg" else None
            if content:
                replies[content.get("id")] = (content, message["buffers"])
        assert "seqlakeCarrier" in replies[None][0]["page"]
        assert json.loads(bytes(replies[1][1][0]))["total"] == 2
        assert bytes(replies[2][1][0]).startswith(b"\x93NUMPY")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_without_the_package_a_notebook_still_shows_the_table(
    dataset: sl.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    link = sl.view(dataset, labels=tmp_path / "labels")
    try:
        assert set(link._repr_mimebundle_()) == {"text/plain", "text/html"}
        with pytest.raises(MissingDependencyError, match=r"seqlake\[jupyter\]"):
            link.widget()
    finally:
        link.close()
