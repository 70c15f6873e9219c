"""The thread of a fake controller: it reconciles ten times a second while the cluster changes, until it is stopped."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane

T = TypeVar("T")
TICK = 0.1  # seconds
IDLE = 0.5  # seconds between two passes while nothing changes: most of the tests' CPU time went into such passes


class Due(Protocol):
    """Says when a controller has to look at the cluster again."""

    def are_due(self) -> bool:
        """Return whether it has to look now."""

    def expect(self) -> None:
        """Look again at the next tick."""


class Changes:
    """Says when to look at the cluster again: after each change in etcd, and otherwise after IDLE."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._revision, self._looked_at = "", 0.0

    def are_due(self) -> bool:
        revision, now = self._plane.revision(round(time.monotonic() / TICK)), time.monotonic()
        if revision == self._revision and now < self._looked_at + IDLE:
            return False
        self._revision, self._looked_at = revision, now
        return True

    def expect(self) -> None:
        """Look again at the next tick."""
        self._looked_at = 0.0


class ReconcileLoop:
    """Calls `reconcile` from `start` to `stop`.

    `last_error` is the last failure of a pass, and `passed_at` the monotonic time at which the last pass began.
    """

    def __init__(
        self, plane: ControlPlane, name: str, reconcile: Callable[[], None], changes: Due | None = None
    ) -> None:
        self.last_error, self.passed_at = "none", 0.0
        self._plane, self._reconcile, self._changes = plane, reconcile, changes or Changes(plane)
        self._pass_lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run no pass inside the block."""
        with self._pass_lock:
            yield
            self._changes.expect()

    def wait(self, predicate: Callable[[], T], seconds: float, what: str) -> T:
        """Wait like `ControlPlane.wait`. The error of a timeout says whether the thread runs, and its last error."""
        try:
            return self._plane.wait(predicate, seconds, what)
        except AssertionError as error:
            state = "is running" if self._thread.is_alive() else "has ended"
            error.add_note(f"{self._thread.name} {state}; its last error: {self.last_error}")
            raise

    def _run(self) -> None:
        while not self._stopped.wait(TICK - time.monotonic() % TICK):  # all loops at once, so that one asks etcd
            # If the API server is unavailable or a write conflicts, the next pass starts from the cluster's state.
            with self._pass_lock:
                began = time.monotonic()
                try:
                    if self._changes.are_due():
                        self._reconcile()
                        self.passed_at = began
                except (ApiError, OSError, http.client.HTTPException) as error:
                    self.last_error = f"{datetime.now(UTC):%H:%M:%S} {error!r}"
