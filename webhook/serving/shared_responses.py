"""Lets requests for the same page share one response, so that a flood of them delays no probe and no scrape."""

import time
from collections.abc import Callable

from msgspec.structs import replace

from webhook.serving.exchange import Request, Response

VERBOSE = "verbose"  # the only parameter of the plain port


class SharedResponses:
    """Responds to requests with `respond`, but not again for a request that has waited since before the last response.

    2,000 connections that ask for `/metrics` at once took 12 s, in which no scrape was answered. Shared responses are
    as fresh as others: each is computed after its request has arrived. `clock` is the one of `Request.received`.
    """

    def __init__(
        self, respond: Callable[[Request, str], Response], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._respond, self._clock = respond, clock
        self._last: dict[str, tuple[float, Response]] = {}

    def __call__(self, request: Request, peer: str) -> Response:
        """Return a response that was computed after the request arrived. Thread-safe."""
        if request.head.method != "GET":
            return self._respond(request, peer)
        # One spelling per page: made-up parameters must neither avoid the sharing nor fill the memory.
        target = f"{request.head.path}?{VERBOSE}" if VERBOSE in request.head.query else request.head.path
        begun, response = self._last.get(target, (0.0, None))
        if response is None or begun < request.received:
            begun = self._clock()
            response = self._respond(replace(request, head=replace(request.head, target=target)), peer)
            self._last[target] = begun, response
        return response
