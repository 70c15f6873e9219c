"""Threads for slow requests: those that may wait for the API server, and large ones, one at a time."""

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from threading import Lock

import structlog

from webhook.serving.connection import Connection, RequestHandler
from webhook.serving.exchange import Request, Response, error_response
from webhook.serving.gc_pauses import no_collections

THREADS = 8
# Beside a thread of the same priority that decides large reviews, the loop waited for a core for a sixth of the time.
NICENESS = 10
# Seconds. After a large review, its thread pauses for as long as the decision took: to read 8 MiB of nested lists takes
# 40 ms, in which no other thread runs, and two such reviews in a row delayed the response to another for 98 ms.
MAX_PAUSE = 0.02
RETRY_LATER = [("Retry-After", "1")]

log = structlog.get_logger("webhook")


def _lower_priority() -> None:
    """Let the loop run before this thread. Linux changes the calling thread alone."""
    with suppress(OSError):
        os.nice(NICENESS)


class _Threads:
    """Threads that call `decide` with queued requests. The peers take turns, each with its requests in order."""

    def __init__(self, number: int, name: str, decide: Callable[[Connection, Request], None]) -> None:
        self._decide, self._lock = decide, Lock()
        # The request of each connection by peer; the next peer and its next connection come first.
        self._queues: dict[str, dict[Connection, Request]] = {}
        self._executor = ThreadPoolExecutor(number, name, _lower_priority)

    def submit(self, connection: Connection, request: Request) -> None:
        """Queue a request. Raises RuntimeError if no thread can be started."""
        with self._lock:
            self._executor.submit(self._decide_next)
            self._queues.setdefault(connection.peer, {})[connection] = request

    def _decide_next(self) -> None:
        with self._lock:
            if not self._queues:  # the request was withdrawn, or no thread could be started for it
                return
            peer = next(iter(self._queues))
            queue = self._queues.pop(peer)
            connection = next(iter(queue))
            request = queue.pop(connection)
            if queue:
                self._queues[peer] = queue
        self._decide(connection, request)

    def withdraw(self, connection: Connection) -> bool:
        """Remove the connection's request from the queue. Return false if it isn't queued."""
        with self._lock:
            queue = self._queues.get(connection.peer, {})
            found = queue.pop(connection, None) is not None
            if found and not queue:
                del self._queues[connection.peer]
            return found

    def shutdown(self) -> None:
        """Cancel queued requests and return without waiting for running ones."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class DecisionPool:
    """Decides requests in threads. `results` holds the responses; `on_result` is called after each, in its thread.

    A request is not decided if its connection is gone by then; the response is None if the peer has closed it.
    Requests for which the handler's `one_at_a_time` holds share one thread. Each connection has one request at most.
    """

    def __init__(self, handler: RequestHandler, on_result: Callable[[], None]) -> None:
        self.results: deque[tuple[Connection, Request, Response | None]] = deque()
        self._handler, self._on_result = handler, on_result
        self._threads = _Threads(THREADS, "deciding", self._decide)
        self._single_thread = _Threads(1, "deciding-one", self._decide_alone)

    def submit(self, connection: Connection, request: Request) -> None:
        """Queue a request. If no thread can be started, queue a 503 with `Retry-After` as its result."""
        threads = self._single_thread if self._handler.one_at_a_time(request) else self._threads
        try:
            threads.submit(connection, request)
        except RuntimeError as error:  # Python could not start a thread; a retry may succeed
            response = error_response(HTTPStatus.SERVICE_UNAVAILABLE, "no thread available", headers=RETRY_LATER)
            self._fail(connection, request, error, response)

    def withdraw(self, connection: Connection) -> bool:
        """Remove the connection's request from its queue. Return false if a thread decides it, or has decided it."""
        return any(threads.withdraw(connection) for threads in (self._single_thread, self._threads))

    def _decide_alone(self, connection: Connection, request: Request) -> None:
        begin = time.perf_counter()
        with no_collections():
            self._decide(connection, request)
        time.sleep(min(time.perf_counter() - begin, MAX_PAUSE))

    def _decide(self, connection: Connection, request: Request) -> None:
        try:
            if connection.pending is request:
                gone = connection.channel.peer_closed
                response = None if gone else self._handler.threaded(request, connection.peer)
                self.results.append((connection, request, response))
        except Exception as error:  # noqa: BLE001 (logged, and the peer gets a 500)
            response = error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
            self._fail(connection, request, error, response)
        self._on_result()

    def _fail(self, connection: Connection, request: Request, error: Exception, response: Response) -> None:
        log.error("request failed", exc_info=error)
        self.results.append((connection, request, response))

    def shutdown(self) -> None:
        """Cancel queued requests and return without waiting for running ones."""
        for threads in (self._threads, self._single_thread):
            threads.shutdown()
