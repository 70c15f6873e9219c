"""Calls a WSGI application (PEP 3333) with a parsed request."""

import sys
from collections.abc import Iterable
from http import HTTPStatus
from io import BytesIO
from typing import Any
from wsgiref.types import WSGIApplication

from webhook.serving.exchange import Headers, Request, Response


def environ(request: Request, peer: str) -> dict[str, Any]:
    """Return the WSGI environment of a request (PEP 3333)."""
    variables = {
        "REQUEST_METHOD": request.head.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": request.head.path,  # not unquoted: each path has one spelling
        "QUERY_STRING": request.head.query,
        "SERVER_NAME": "kubevirt-scheduler",
        "SERVER_PORT": "443",
        "SERVER_PROTOCOL": "HTTP/{}.{}".format(*request.head.version),
        "REMOTE_ADDR": peer,
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "https",
        "wsgi.input": BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.head.headers:
        key = name.decode("latin-1").upper().replace("-", "_")
        if key == "CONTENT_TYPE":
            variables[key] = value.decode("latin-1")
        elif (
            key not in ("CONTENT_LENGTH", "TRANSFER_ENCODING") and b"_" not in name
        ):  # CGI can't distinguish a_b from a-b
            key = f"HTTP_{key}"
            variables[key] = (
                f"{variables[key]},{value.decode('latin-1')}" if key in variables else value.decode("latin-1")
            )
    return variables


def wsgi_response(app: WSGIApplication, request: Request, peer: str = "") -> Response:
    """Call a WSGI application and return its response, without the headers that `serialize` adds."""
    captured: list[Any] = []

    def start_response(status: str, headers: Headers, _exc_info: object = None) -> Any:
        captured[:] = status, headers

    parts: Iterable[bytes] = app(environ(request, peer), start_response)
    try:
        body = b"".join(parts)
    finally:
        close: Any = getattr(parts, "close", lambda: None)
        close()
    status, headers = captured
    kept = [(name, value) for name, value in headers if name.lower() not in ("content-length", "connection", "date")]
    return Response(HTTPStatus(int(status[:3])), body, kept)
