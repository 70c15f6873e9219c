"""Call a WSGI application (PEP 3333) with a complete request, and return its response."""

import sys
from collections.abc import Callable, Collection
from http import HTTPStatus
from io import BytesIO, StringIO
from typing import Any
from wsgiref.types import WSGIApplication, WSGIEnvironment

from webhook.serving.worker.messages import Request, Response

Respond = Callable[[Request], Response]
# Keys of the environ: when the first byte of the request was read, and the only paths that the listener serves.
RECEIVED, PATHS = "kubevirt_scheduler.received", "kubevirt_scheduler.paths"


def responder(
    application: WSGIApplication,
    paths: Collection[str],
    shortcut: Callable[[Request], Response | None] = lambda _request: None,
) -> Respond:
    """Return a function that responds to the requests of one listener, which serves only these paths.

    The `shortcut` may respond to a request without the application, as the application would. It returns None for a
    request that it leaves to the application.
    """

    def respond(request: Request) -> Response:
        found = shortcut(request)
        return call(application, environ_of(request, paths)) if found is None else found

    return respond


def environ_of(request: Request, paths: Collection[str]) -> WSGIEnvironment:
    """Return the environ of a request. Of its headers, the parser keeps only the Content-Type."""
    head = request.head
    return {
        "REQUEST_METHOD": "GET" if head.method == "HEAD" else head.method,  # the connection omits the body
        "SCRIPT_NAME": "",
        # Each path has one spelling: this isn't unquoted, and werkzeug would take //mutate for /mutate.
        "PATH_INFO": head.path.replace("//", "/%2F"),
        "QUERY_STRING": head.query,
        "CONTENT_TYPE": head.content_type.decode("latin-1"),
        "CONTENT_LENGTH": str(len(request.body)),
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(request.body),
        "wsgi.errors": sys.stderr or StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        RECEIVED: request.received,
        PATHS: paths,
    }


def call(application: WSGIApplication, environ: WSGIEnvironment) -> Response:
    """Return the response of an application."""
    started: list[Any] = []
    written = list[bytes]()

    def start_response(status: str, headers: list[tuple[str, str]], _error: object = None) -> Callable[[bytes], object]:
        started[:] = [status, headers]
        return written.append

    parts = application(environ, start_response)
    try:
        written += parts
    finally:
        if close := getattr(parts, "close", None):
            close()
    status, headers = started
    # `serialize` adds the length.
    kept = [(name, value) for name, value in headers if name != "Content-Length"]
    return Response(HTTPStatus(int(status.partition(" ")[0])), b"".join(written), kept)
