"""What we use of gunicorn beyond its settings: read anew by us whenever it changes."""

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

from webhook.serving.server import HUNG, _Worker

READ = "27.0.1"  # the version of which this was read

# Each with the digest of its source, and where we stand on it.
USED = [
    (PythonProtocol, "fe72402943fb078d", "exchange.Reader: callbacks, limits, attributes, is_complete, remaining()"),
    (Worker.__init__, "e0f1de2d60574066", "server._Worker: sockets, ppid, alive, age, tmp"),
    (
        Worker.init_process,
        "114caccd7a0e3c21",
        "server.Server.run: post_worker_init comes after the fork and before run()",
    ),
    (Worker.init_signals, "65442e0602b05f37", "server._Worker: which signal calls handle_exit, which handle_quit"),
    (Worker.notify, "7f509bc4046b0e97", "server._Worker.turned: the heartbeat"),
    (Worker.handle_exit, "e2f7159c426d379c", "server._Worker.handle_exit, which takes its place"),
    (Worker.handle_quit, "2944b41327615dc6", "server._Worker.handle_quit, which takes its place"),
    (Arbiter.signal, "8b193e95e16aa270", "server._Arbiter.signal, which goes before it"),
    (
        Arbiter.stop,
        "7138b6afd9c46ae0",
        "server._Arbiter: it passes SIGTERM on once, waits for graceful_timeout, and hears no second one",
    ),
    (Arbiter.kill_workers, "00a2eb10d3493fd0", "server._Arbiter.signal calls it"),
    (Arbiter.kill_worker, "47e1a8ccdca2b567", "server._Arbiter.signal calls it"),
    (Arbiter.murder_workers, "3f8fbfdf473fe338", "server.HUNG: a worker without a heartbeat is replaced"),
    (Arbiter.spawn_worker, "6abc0d90b0b9f80b", "server.Server.run: worker_exit is called in the worker, at its end"),
    (BaseApplication, "88c6ffeb635de871", "server._Gunicorn: load_config, load, run"),
]


@pytest.mark.parametrize(("used", "digest", "where"), USED, ids=[used.__qualname__ for used, _, _ in USED])
def test_what_we_stand_on_is_as_we_read_it(used, digest, where):
    found = hashlib.sha256(inspect.getsource(used).encode()).hexdigest()[:16]
    assert found == digest, (
        f"gunicorn changed {used.__qualname__}: look again at webhook/{where}; then note {found} here"
    )


def test_the_version_is_the_one_that_we_read():
    assert version("gunicorn") == READ, (
        "another gunicorn: read what it changed in asgi/parser.py, arbiter.py and workers/base.py, then note it here"
    )


def test_a_worker_that_hangs_from_its_start_on_is_late_as_well():
    """Its heartbeat begins with the time of day, and gunicorn's master holds it against a monotonic clock."""
    found = []

    class Hanging:
        def run(self):
            found.append(worker.tmp.last_update())

    worker = _Worker(1, os.getppid(), [], None, HUNG, Config(), None)
    worker.loop = Hanging()
    with closing(worker.tmp):
        worker.run()
    assert found == [pytest.approx(monotonic(), abs=60)]
