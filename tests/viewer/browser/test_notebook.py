"""The widget's own script in a page: what it asks is answered by the routes, and nothing else is asked for."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.viewer.browser.viewing import READ, frame_of

import seqlake as sl
from seqlake.viewer.app import Server
from seqlake.viewer.curating import Drafts
from seqlake.viewer.notebook import HERE, Answers
from seqlake.viewer.safety import Rules
from seqlake.viewer.tables import Shelf

if TYPE_CHECKING:
    from pathlib import Path

LOOKED_AT = ("h264", "vp9", "half", "late", "hevc")

# As a notebook does: the module is a blob, its model sends to a kernel and hears what comes back, with buffers.
HOST = """async ([source, theme]) => {
    document.body.dataset.jpThemeLight = theme;
    const listeners = new Set();
    const model = {
        on: (_, listener) => listeners.add(listener), off: (_, listener) => listeners.delete(listener), get: () => null,
        send: async (content) => {
            const [message, buffers] = JSON.parse(await window.askKernel(JSON.stringify(content)));
            const views = buffers.map((one) => new DataView(Uint8Array.from(atob(one), (c) => c.charCodeAt(0)).buffer));
            for (const listener of [...listeners]) listener(message, views);
        },
    };
    const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    const el = document.createElement("div");
    document.body.append(el);
    window.leave = widget.render({ model, el });
}"""


def test_the_widget_shows_the_frame_of_the_step(browser: Any, made: Path, tmp_path: Path) -> None:
    server = Server(
        Shelf(sl.open(made), sequence="every"),
        Rules(host="127.0.0.1", port=1, token="t"),
        Drafts("x", folder=tmp_path),
    )
    answers = Answers(server)

    workers = ThreadPoolExecutor(1)  # as in a kernel: playwright's own loop runs in this thread

    def ask(text: str) -> str:
        message, buffers = workers.submit(answers.answer, json.loads(text)).result()
        return json.dumps([message, [base64.b64encode(one).decode() for one in buffers]])

    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.expose_function("askKernel", ask)
    page.set_content("<!doctype html><body></body>")
    page.evaluate(HOST, [(HERE / "widget.js").read_text(encoding="utf-8"), "false"])
    page.wait_for_selector("iframe")
    frame = page.query_selector("iframe").content_frame()
    frame.wait_for_selector('[data-sequence="every"]')
    assert frame.evaluate("document.documentElement.dataset.theme") == "dark"
    for step in (0, 29, 88):
        # Every film that is read has its track, whichever come last.
        frame.wait_for_function(
            "(names) => names.every((one) => document.querySelector(`[data-tile=${one}]`)?.dataset.shown)",
            arg=list(LOOKED_AT),
        )
        frame.evaluate(f"seqlakePlayer.seek({step})")
        frame.wait_for_function("() => seqlakePlayer.settled()")
        for name in LOOKED_AT:
            assert frame.evaluate(f"({READ})", name) == frame_of(name, step), name
    frame.get_by_role("link", name="Sequences").click()
    frame.wait_for_selector("tbody tr")
    frame.wait_for_function("() => [...document.querySelectorAll('.strip img')].some((one) => one.naturalWidth > 200)")
    frame.get_by_role("link", name="SQL").click()
    frame.get_by_label("SQL", exact=True).fill("SELECT count(*) AS many FROM dataset")
    frame.get_by_role("button", name="Run").click()
    frame.wait_for_selector("tbody td")
    frame.get_by_role("button", name="Back").click()
    frame.get_by_role("button", name="Back").click()
    frame.wait_for_selector("tbody tr [type=checkbox]")
    page.evaluate("window.leave()")
    context.close()
    workers.shutdown()
    assert not [url for url in asked if not url.startswith(("about:", "blob:", "data:"))]
    assert not wrong
