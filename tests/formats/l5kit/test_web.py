"""A store on a plain web server: a zip of it is read by ranges, a folder says what to do instead."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from seqlake.compat import l5kit as l5
from seqlake.errors import ReadOnlyError


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, as `python -m http.server` gives them."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path):
    """The address of the test's folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_zip_is_read_and_a_folder_says_why_not(zarr, served, tmp_path):
    drives = zarr.drives(scenes=1)
    folder = zarr.write(tmp_path / "drive.zarr", drives)
    zarr.zipped(folder, tmp_path / "drive.zarr.zip")
    storage = {"allow_http": "true"}
    store = l5.open_store(f"{served}/drive.zarr.zip", storage=storage)
    zarr.same({name: array[:] for name, array in store.arrays.items()}, drives)
    with pytest.raises(ReadOnlyError, match="plain web server") as raised:
        l5.open_store(f"{served}/drive.zarr", storage=storage)
    assert "zip archive" in str(raised.value.hint)
