"""Runs the event loop as a gunicorn worker, with its signals and heartbeat."""

import os
import time
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.workers.base import Worker

from webhook.serving.worker.loop import Loop


class LoopWorker(Worker):
    """A gunicorn worker that runs the event loop. `post_worker_init` sets `loop` after the fork."""

    loop: Loop | None = None
    _notified = 0.0

    def on_turn(self) -> None:
        """Send a heartbeat to gunicorn's master once a second. Shut down if the master is gone."""
        now = time.monotonic()
        if now - self._notified > 1:
            self._notified = now
            self.notify()
            if os.getppid() != self.ppid:
                self._stop(force=True)

    def run(self) -> None:
        """Serve until a signal has drained the loop."""
        assert self.loop, "set in post_worker_init"  # noqa: S101 (for the type checker)
        # gunicorn initializes the heartbeat with wall-clock time but compares it with monotonic time. Without this
        # call, a worker that hangs before its first turn is never late.
        self.on_turn()
        self.loop.run()

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 (gunicorn's signature)
        """Shut down gracefully; a second call forces it."""
        self._stop(force=False)

    def handle_quit(self, sig: int, frame: Any) -> None:  # noqa: ARG002
        """Shut down immediately, but respond to unfinished requests."""
        self._stop(force=True)

    def _stop(self, *, force: bool) -> None:
        self.alive = False
        for _ in range(1 + force):
            if self.loop:
                self.loop.drain()
            else:
                raise SystemExit(0)


class Gunicorn(BaseApplication):
    """gunicorn as a library: without a command line or a configuration file."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        """Set the options."""
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Return no application: the loop calls it itself."""
        return None
