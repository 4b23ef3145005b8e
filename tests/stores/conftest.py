"""A Hub on loopback, whose reader is logged in."""

from __future__ import annotations

from urllib.parse import urlsplit

import huggingface_hub.constants
import huggingface_hub.utils._http as client
import pytest
from tests.hub import serving

from seqlake.files import web
from seqlake.stores.hf import hub as hubs


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf_cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.setattr(web.time, "sleep", lambda _: None)
    # Hub and storage are two hosts there and two ports here; the client tells them apart by the host alone.
    monkeypatch.setattr(
        client, "_is_same_or_hub_host", lambda a, b: urlsplit(a).netloc == urlsplit(b).netloc, raising=False
    )
    hubs._TREES.clear()
    with serving() as one:
        monkeypatch.setenv("HF_ENDPOINT", one.endpoint)
        yield one
