"""Starts the viewer's server, and hands out its address."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import urlencode

from seqlake.abilities import OfATable, ability
from seqlake.errors import MissingDependencyError
from seqlake.plugins import require
from seqlake.viewer.app import Server
from seqlake.viewer.curating import Drafts
from seqlake.viewer.exporting import MOST, ExportedPages, plan, write
from seqlake.viewer.notebook import widget
from seqlake.viewer.safety import Rules, is_loopback
from seqlake.viewer.tables import Shelf

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seqlake.dataset.selection import Selection


class Viewer:
    """A running viewer: prints as its address, shows itself in notebooks, ends with `close`.

    Attributes:
        url: The address, with the token.
    """

    def __init__(self, url: str, runner: Any, thread: threading.Thread, server: Server) -> None:
        self.url = url
        self._runner = runner
        self._thread = thread
        self._server = server
        self._widget: Any = None

    def close(self) -> None:
        """End the server; the address answers no more."""
        self._runner.should_exit = True
        self._thread.join(5)

    def wait(self) -> None:
        """Go on until the server ends."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def widget(self) -> Any:
        """The viewer as a widget: its messages carry the data, so that it works where the address is not reached.

        Raises:
            MissingDependencyError: anywidget is not installed: `pip install 'seqlake[jupyter]'`.

        Example:
            ```python
            sl.view(ds).widget()       # what a notebook shows of `sl.view(ds)` by itself, too
            ```
        """
        if self._widget is None:
            self._widget = widget(self._server)
        return self._widget

    def __repr__(self) -> str:
        return self.url

    def _repr_html_(self) -> str:
        link = f'<p><a href="{escape(self.url)}" target="_blank">Open the viewer</a> (on this machine)</p>'
        return link + self._server.shelf.selection._repr_html_()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """What notebooks show: the widget where anywidget is installed; a table and a link where it is not shown."""
        plain = {"text/plain": repr(self), "text/html": self._repr_html_()}
        try:
            shows = self.widget()
        except MissingDependencyError:
            return plain
        bundle = shows._repr_mimebundle_()
        return {**(bundle[0] if isinstance(bundle, tuple) else bundle or {}), **plain}


@overload
def view(
    selection: Selection,
    sequence_id: str | None = None,
    /,
    *,
    where: str | None = None,
    export: str | os.PathLike[str],
    overwrite: bool = False,
    most: int = MOST,
) -> ExportedPages: ...
@overload
def view(
    selection: Selection,
    sequence_id: str | None = None,
    /,
    *,
    where: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token: bool = True,
    labels: str | os.PathLike[str] | None = None,
    allow_dirs: Iterable[str | os.PathLike[str]] = (),
) -> Viewer: ...
def view(
    selection: Selection,
    sequence_id: str | None = None,
    /,
    *,
    where: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token: bool = True,
    labels: str | os.PathLike[str] | None = None,
    allow_dirs: Iterable[str | os.PathLike[str]] = (),
    export: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    most: int = MOST,
) -> Viewer | ExportedPages:
    """Serve a dataset to the browser of this machine until `close` is called or the process ends.

    With `export` nothing is served: some sequences become a folder of static files, which opens from a disk or any web
    server, without seqlake. It holds no more than its bound, and appears whole, at the end.

    Args:
        selection: A dataset, a selection, a scanned format.
        sequence_id: The sequence that the page begins with.
        where: The filter that it begins with.
        host: What it is bound to; others than loopback are reached from other machines.
        port: 0 for a free one.
        token: Whether the address must carry a secret; without one only on loopback.
        labels: The folder that drafts of labels lie in; the user's cache by default.
        allow_dirs: Folders outside the dataset whose files it may name; links in them lead no further.
        export: The folder to write, of `sequence_id`, of what `where` chooses, or of all.
        overwrite: Replace an export that is there.
        most: Bytes that an export may have.

    Raises:
        MissingDependencyError: Starlette or uvicorn is not installed.
        ValueError: No token on an address that other machines reach.
        QueryError: An export would be larger than it may be, or nothing is chosen.
        DatasetExistsError: The folder of the export is taken.

    Example:
        ```python
        link = sl.view(ds, "ep_001")       # prints as http://127.0.0.1:…/?token=…
        link.close()
        sl.view(ds, where="reward > 3", export="to-send")       # open to-send/index.html
        ```
    """
    if export is not None:
        planned = plan(selection, sequence_id, where=where, most=most)
        return write(planned, selection, Path(export), overwrite=overwrite)
    require("starlette", extra="view")
    uvicorn = require("uvicorn", extra="view")
    if not token and not is_loopback(host):
        raise ValueError(f"Without a token the viewer is bound to loopback only, not to {host!r}.")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    bound = listening.getsockname()[1]
    rules = Rules(host=host, port=bound, token=secrets.token_urlsafe(24) if token else None)
    table = ability(selection, OfATable)
    drafts = Drafts(
        selection.root if table is None else table.location, folder=None if labels is None else Path(labels)
    )
    allowed = [os.path.abspath(one) for one in allow_dirs]  # noqa: PTH100 - links are followed where they are compared
    server = Server(Shelf(selection, where=where, sequence=sequence_id, folders=allowed), rules, drafts)
    config = uvicorn.Config(server.app(), log_level="error", lifespan="off", server_header=False, ws="none")
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run, args=([listening],), daemon=True, name="seqlake-view")
    thread.start()
    while not runner.started and thread.is_alive():
        time.sleep(0.01)
    name = f"[{host}]" if ":" in host else host
    query = urlencode({key: one for key, one in (("id", sequence_id), ("where", where), ("token", rules.token)) if one})
    page = "seq" if sequence_id is not None else ""
    return Viewer(f"http://{name}:{bound}/{page}" + (f"?{query}" if query else ""), runner, thread, server)
