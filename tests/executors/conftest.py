"""A Ray cluster on this machine for all tests here that want one: it takes seconds to start."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def cluster():
    ray = pytest.importorskip("ray")
    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)  # not one that runs here
    yield ray
    ray.shutdown()
