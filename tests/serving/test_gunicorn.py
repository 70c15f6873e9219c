"""The gunicorn internals that the server relies on, pinned: a change needs a new review of their source."""

import hashlib
import inspect
import os
from contextlib import closing
from importlib.metadata import version
from time import monotonic

import pytest
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.asgi.parser import PythonProtocol
from gunicorn.config import Config
from gunicorn.workers.base import Worker

from webhook.serving.gunicorn_parser import PatternParser
from webhook.serving.server import WORKER_TIMEOUT, _Worker

REVIEWED_VERSION = "27.0.1"

# Each row: the internal, the start of the SHA-256 of its source, and the code that relies on it.
INTERNALS = [
    (
        PythonProtocol,
        "fe72402943fb078d",
        "gunicorn_parser: callbacks, limits, attributes, is_complete, remaining(), and two checks that it overrides",
    ),
    (Worker.__init__, "e0f1de2d60574066", "server._Worker: sockets, ppid, alive, age, tmp"),
    (
        Worker.init_process,
        "114caccd7a0e3c21",
        "server.Server.run: post_worker_init runs after the fork and before run()",
    ),
    (Worker.init_signals, "65442e0602b05f37", "server._Worker: which signal calls handle_exit, which handle_quit"),
    (Worker.notify, "7f509bc4046b0e97", "server._Worker.on_turn: the heartbeat"),
    (Worker.handle_exit, "e2f7159c426d379c", "server._Worker.handle_exit, which overrides it"),
    (Worker.handle_quit, "2944b41327615dc6", "server._Worker.handle_quit, which overrides it"),
    (Arbiter.signal, "8b193e95e16aa270", "server._Arbiter.signal, which extends it"),
    (
        Arbiter.stop,
        "7138b6afd9c46ae0",
        "server._Arbiter: stop() forwards SIGTERM once, waits for graceful_timeout, and ignores a second SIGTERM",
    ),
    (Arbiter.kill_workers, "00a2eb10d3493fd0", "server._Arbiter.signal calls it"),
    (Arbiter.kill_worker, "47e1a8ccdca2b567", "server._Arbiter.signal calls it"),
    (Arbiter.murder_workers, "3f8fbfdf473fe338", "server.WORKER_TIMEOUT: a worker without a heartbeat is replaced"),
    (Arbiter.spawn_worker, "6abc0d90b0b9f80b", "server.Server.run: worker_exit is called in the worker when it exits"),
    (BaseApplication, "88c6ffeb635de871", "server._Gunicorn: load_config, load, run"),
]


@pytest.mark.parametrize(
    ("internal", "digest", "usage"), INTERNALS, ids=[internal.__qualname__ for internal, _, _ in INTERNALS]
)
def test_a_gunicorn_internal_is_as_reviewed(internal, digest, usage):
    actual = hashlib.sha256(inspect.getsource(internal).encode()).hexdigest()[:16]
    assert actual == digest, (
        f"gunicorn changed {internal.__qualname__}: review webhook/serving/{usage}; then record {actual} here"
    )


def test_the_gunicorn_version_is_the_reviewed_one():
    assert version("gunicorn") == REVIEWED_VERSION, (
        "gunicorn was updated: review asgi/parser.py, arbiter.py and workers/base.py, then record the version here"
    )


def test_the_first_heartbeat_of_a_worker_is_monotonic_time():
    """A new heartbeat file has the time of day, but gunicorn compares it with a monotonic clock.

    Without this heartbeat a worker that hangs at startup would never time out.
    """
    heartbeats = []

    class Hanging:
        def run(self):
            heartbeats.append(worker.tmp.last_update())

    worker = _Worker(1, os.getppid(), [], None, WORKER_TIMEOUT, Config(), None)
    worker.loop = Hanging()
    with closing(worker.tmp):
        worker.run()
    assert heartbeats == [pytest.approx(monotonic(), abs=60)]


@pytest.mark.parametrize("check", ["_is_valid_token", "_has_invalid_header_chars"])
@pytest.mark.parametrize("frame", [b"", b"ab"], ids=["alone", "inside"])
def test_a_pattern_decides_on_each_byte_like_gunicorn(check, frame):
    ours, original = PatternParser(), PythonProtocol()
    texts = [b"", *(frame + bytes([byte]) + frame for byte in range(256))]
    differing = [text for text in texts if bool(getattr(ours, check)(text)) != getattr(original, check)(text)]
    assert differing == []
