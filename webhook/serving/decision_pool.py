"""What is decided in threads: what may have to wait for the API server, and what is large, one at a time."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import structlog

from webhook.serving.connection import Connection, RequestHandler
from webhook.serving.exchange import LARGE, Request, Response, error_response

THREADS = 8
AGAIN = [("Retry-After", "1")]

log = structlog.get_logger("webhook")


class DecisionPool:
    """`decided` is what came of requests, with whose they are; `done` is called after each, from its thread.

    A body of 8 MiB takes up to 300 MB while it is decided on: two at once, and the container is at its limit.
    """

    def __init__(self, answering: RequestHandler, done: Callable[[], None]) -> None:
        self.decided: deque[tuple[Connection, Request, Response]] = deque()
        self._answering, self._done = answering, done
        self._threads, self._one = ThreadPoolExecutor(THREADS, "deciding"), ThreadPoolExecutor(1, "deciding-large")

    def take(self, connection: Connection, request: Request) -> None:
        """Have a request answered."""
        threads = self._one if len(request.body) > LARGE else self._threads
        try:
            threads.submit(self._decide, connection, request)
        except RuntimeError as error:  # no thread can be had: the next try may find one
            again = error_response(HTTPStatus.SERVICE_UNAVAILABLE, "there is no thread to decide in", headers=AGAIN)
            self._fail(connection, request, error, again)

    def _decide(self, connection: Connection, request: Request) -> None:
        try:
            self.decided.append((connection, request, self._answering.threaded(request, connection.peer)))
        except Exception as error:  # noqa: BLE001 (it is logged, and the peer is answered)
            failed = error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "the webhook failed")
            self._fail(connection, request, error, failed)
        self._done()

    def _fail(self, connection: Connection, request: Request, error: Exception, answer: Response) -> None:
        log.error("a request failed", exc_info=error)
        self.decided.append((connection, request, answer))

    def end(self) -> None:
        """Take no more, and wait for nobody."""
        for threads in (self._threads, self._one):
            threads.shutdown(wait=False, cancel_futures=True)
