"""What several rooms' tests need: a real S3-speaking server on loopback.

Run as a script, this is the server: in a process of its own, so that tests may fork without its threads.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import obstore
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

# How fast this machine is, is no fault of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

HEAVY = ["torch", "pandas", "av", "duckdb", "deltalake", "pyiceberg.catalog.sql"]
"""What processes that are forked by a server find imported."""

ENDED = pytest.StashKey[str]()
CREDENTIALS = {"access_key_id": "testing", "secret_access_key": "testing", "region": "us-east-1"}


class Bucket(NamedTuple):
    """An empty bucket and the `storage=` that opens it."""

    uri: str
    storage: dict[str, str]


def pytest_configure() -> None:
    """Ctrl-C interrupts, here and in all processes that tests begin: one begun in the background may ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_forkserver_preload(HEAVY)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: were it looked at for garbage each time, that would take seconds a time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """All items of a test, of which every run may take some."""
    items = yield
    if isinstance(items, list):
        from . import soak  # not at the top: run as a script, this file belongs to no package

        soak.leave(items)
    return items


def counted(item: pytest.Item) -> bool:
    """Whether it is one of those whose counts stand in `benchmarks/results/soak.md`."""
    return item.get_closest_marker("soak") is not None and item.get_closest_marker("mutations") is not None


def tell(**line: object) -> None:
    """A line for the page; see `counting.py`."""
    from . import counting  # not at the top: run as a script, this file belongs to no package

    counting.tell(**line)


def pytest_sessionstart(session: pytest.Session) -> None:
    """The process that gives out the tests says now and then where they are."""
    if not hasattr(session.config, "workerinput"):
        from . import heartbeat  # not at the top: run as a script, this file belongs to no package

        session.config.pluginmanager.register(heartbeat.Heartbeat(), "heartbeat")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """What hangs after the last test, in a process of tests or in the one that waits for them, says where, and ends."""
    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the soak was to read."""
    tell(planned=[item.nodeid for item in session.items if counted(item)])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Tests that could not even be collected, where they are changes of inputs."""
    if not report.passed and "mutations" in report.nodeid:
        tell(ended=report.nodeid, how=f"{report.outcome}: {ending(report)}", cpu=0.0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What a test of the soak cost, whatever became of it."""
    if not counted(item):
        return (yield)
    before = cpu()
    try:
        return (yield)
    finally:
        how = item.stash.get(ENDED, "did not come to its end")
        tell(ended=item.nodeid, how=how, cpu=round(cpu() - before, 1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """How it ended."""
    report = yield
    if not report.passed or (report.when == "call" and ENDED not in item.stash):
        item.stash[ENDED] = "passed" if report.passed else f"{report.outcome}: {ending(report)}"
    return report


def ending(report: pytest.CollectReport | pytest.TestReport) -> str:
    """The reason in a line."""
    told = report.longrepr
    lines = (str(told[2]) if isinstance(told, tuple) else str(told)).strip().splitlines() or [""]
    return lines[-1][:200]


def cpu() -> float:
    """Seconds of this process and of those that it waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Tests that have SVT-AV1 encode as root make their process a real-time one, and whatever it begins."""
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) != os.SCHED_OTHER:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError, PermissionError):
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's cache is a temporary folder: tests neither believe nor fill the real one."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def forks_that_come_up() -> Iterator[None]:
    """Whatever forks here, `multiprocessing` too, does so beside the threads of many libraries."""
    from seqlake.testing.oracle import crashes

    with pytest.MonkeyPatch.context() as patch:
        if hasattr(os, "fork"):
            patch.setattr(os, "fork", crashes.fork)
        yield


@pytest.fixture(scope="session")
def official() -> Iterator[Callable[..., Any]]:
    """MosaicML's own package, in a process of its own: see `Official`."""
    from . import mosaicml  # not at the top: run as a script, this file belongs to no package

    interpreter = mosaicml.python()
    if interpreter is None:
        pytest.skip(
            f"needs mosaicml-streaming: benchmarks/peers/setup makes its environment, or set {mosaicml.VARIABLE}"
        )
    with mosaicml.Official(interpreter) as process:
        yield process


@pytest.fixture(scope="session")
def s3_server() -> Iterator[dict[str, str]]:
    """The server's address and credentials, as `storage=` takes them."""
    server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    endpoint = server.stdout.readline().strip()
    assert endpoint, "the S3 server did not start"
    yield {**CREDENTIALS, "endpoint": endpoint, "allow_http": "true", "virtual_hosted_style_request": "false"}
    server.stdin.close()  # it ends when its input does, also if the tests were killed
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:  # a process that some test forked holds the other end of its input
        server.kill()
        server.wait()
    server.stdout.close()


@pytest.fixture
def s3_bucket(s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket; the user's own AWS settings are out of sight."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ENDPOINT_URL", "REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    request = urllib.request.Request(f"{s3_server['endpoint']}/{name}", method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    return Bucket(f"s3://{name}", s3_server)


class Asked(NamedTuple):
    """A request to an object store."""

    verb: str
    path: str


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What is asked of object stores from now on, in order: for bytes, about an object, which objects there are."""
    found: list[Asked] = []
    for verb in ("get", "head", "list"):
        real = getattr(obstore, verb)

        def call(store: Any, *args: Any, _verb: str = verb, _call: Any = real, **options: Any) -> Any:
            found.append(Asked(_verb, str(args[0]) if args else ""))
            return _call(store, *args, **options)

        monkeypatch.setattr(obstore, verb, call)
    return found


@pytest.fixture
def s3_environment(s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a new bucket that the usual variables open, for code that is given no `storage=`."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_bucket.storage["endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_bucket.storage["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_bucket.storage["secret_access_key"])
    monkeypatch.setenv("AWS_REGION", s3_bucket.storage["region"])
    return s3_bucket.uri


class AtomicPuts:
    """moto answers `If-None-Match: *` by looking first and writing then; one change at a time makes it atomic."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self.app = app
        self.lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in {"PUT", "POST", "DELETE"}:
            with self.lock:
                return list(self.app(environ, start_response))
        return self.app(environ, start_response)


def serve() -> None:
    """Serve until standard input ends."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: object) -> None:
            return

    app = AtomicPuts(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve()
