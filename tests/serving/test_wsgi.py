"""The Flask application runs under any WSGI server, and the shortcut for reviews responds as it does."""

import json
import socket
import subprocess
import sys
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from typing import Any
from wsgiref.validate import check_environ

import pytest

from tests.serving.review_client import Response, ReviewClient, review_port
from tests.support.builders import catalog, node, request, settings, storage, virt_launcher
from tests.support.fake_clock import FakeClock
from tests.support.paths import REVIEWS, ROOT
from webhook.cluster.backend import from_snapshot
from webhook.serving.app import Health, create_app
from webhook.serving.review.reviewer import Reviewer
from webhook.serving.telemetry.metrics import Metrics
from webhook.serving.worker.messages import Head, Request
from webhook.serving.worker.parser import BODY_TOO_LARGE
from webhook.serving.worker.wsgi import PATHS, RECEIVED, call, environ_of

REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request(virt_launcher())}
BODY = json.dumps(REVIEW).encode()
ORDINARY = ("POST", "/mutate?timeout=3s", BODY, "application/json")
ODD: dict[str, tuple[str, str, bytes, str | None]] = {
    "an ordinary review": ORDINARY,
    "a charset": ("POST", "/mutate", BODY, 'application/json; charset="UTF-8"'),
    "no query": ("POST", "/mutate", BODY, "application/json"),
    "a long query": ("POST", f"/mutate?{'a=b&' * 1500}timeout=3s", BODY, "application/json"),
    "an absolute target": ("POST", "https://webhook/mutate", BODY, "application/json"),
    "another media type": ("POST", "/mutate", BODY, "text/plain"),
    "no media type": ("POST", "/mutate", BODY, None),
    "no body": ("POST", "/mutate", b"", "application/json"),
    "no JSON": ("POST", "/mutate", b"{", "application/json"),
    "no review": ("POST", "/mutate", b"[]", "application/json"),
    "a large review": ("POST", "/mutate", BODY.replace(b"{}", b"{" + b" " * 600_000 + b"}", 1), "application/json"),
    "another method": ("GET", "/mutate", b"", None),
    "another path": ("POST", "/mutate/", BODY, "application/json"),
    "two slashes": ("POST", "//mutate", BODY, "application/json"),
    "a path of the other port": ("GET", "/metrics", b"", None),
}
ODD |= {
    file.stem: ("POST", "/mutate?timeout=3s", file.read_bytes(), "application/json") for file in REVIEWS.glob("*.json")
}


def reviewer(store: Any = None) -> Reviewer:
    store = store or catalog(*storage(), node())
    return Reviewer(from_snapshot(store, settings()), settings(), Metrics(), FakeClock())


@pytest.mark.parametrize("sent", ODD.values(), ids=ODD)
def test_the_shortcut_responds_as_the_application(sent: tuple[str, str, bytes, str | None]) -> None:
    method, target, body, content_type = sent
    answers = []
    for shortcut in (True, False):
        chosen = reviewer()
        client = ReviewClient(review_port(chosen, shortcut=shortcut), chosen.clock)
        answer: Response = client.open(target, method, body, content_type)
        answers.append((answer.status_code, answer.data, answer.headers))
    assert answers[0] == answers[1]


def test_the_test_client_of_flask_reaches_each_route_of_the_application() -> None:
    client = create_app(reviewer(), Health(Metrics(), list)).test_client()
    answer = client.post("/mutate?timeout=3s", data=BODY, content_type="application/json")
    assert answer.get_json()["response"]["auditAnnotations"]["reason"] == "CoScheduled"
    assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/metrics", "/")] == [200, 200, 200, 404]
    too_large = client.post("/mutate", data=b" " * (4 * 1024 * 1024 + 1), content_type="application/json")
    assert (too_large.status_code, too_large.get_json()) == (413, {"error": BODY_TOO_LARGE})


MODULE = """
from tests.serving.test_wsgi import Health, Metrics, create_app, reviewer

app = create_app(reviewer(), Health(Metrics(), list))
"""


def test_the_application_runs_under_a_conventional_worker_of_gunicorn(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = ["--worker-class=gthread", "--threads=2", f"--bind=fd://{listener.fileno()}", "--no-control-socket"]
        command = [sys.executable, "-m", "gunicorn", *options, f"--pythonpath={tmp_path},{ROOT}", "module:app"]
        with subprocess.Popen(command, pass_fds=[listener.fileno()], cwd=tmp_path) as server:
            connection = HTTPConnection(*listener.getsockname(), timeout=60)
            try:
                connection.request("POST", "/mutate?timeout=3s", BODY, {"Content-Type": "application/json"})
                found = json.loads(connection.getresponse().read())
            finally:
                connection.close()
                server.terminate()
    assert found["response"]["auditAnnotations"]["reason"] == "CoScheduled"


def test_the_application_may_write_before_it_returns_and_is_closed() -> None:
    class Parts(list[bytes]):
        closed = False

        def close(self) -> None:
            self.closed = True

    parts = Parts([b"b", b"c"])

    def application(environ: Any, start_response: Any) -> Parts:
        assert environ["wsgi.input"].read() == b"sent"
        start_response("201 Created", [("Content-Length", "3"), ("X-A", "b")])(b"a")
        return parts

    found = call(application, {"wsgi.input": BytesIO(b"sent")})
    assert (found.status, found.body, found.headers, parts.closed) == (201, b"abc", [("X-A", "b")], True)


def test_the_environ_is_as_pep_3333_defines_it() -> None:
    head = Head("POST", "/mutate?timeout=3s", b"application/json", keep_alive=True)
    environ = environ_of(Request(head, b"{}", 1.5), ["/mutate"])
    check_environ(dict(environ))
    assert environ["wsgi.input"].read() == b"{}"
    texts = {key: value for key, value in environ.items() if key.isupper() and isinstance(value, str)}
    assert texts == {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/mutate",
        "QUERY_STRING": "timeout=3s",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": "2",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
    }
    # Each of the two listeners has a thread.
    of_wsgi = "version", "url_scheme", "multithread", "multiprocess", "run_once"
    assert [environ[f"wsgi.{key}"] for key in of_wsgi] == [(1, 0), "http", True, False, False]
    assert (environ[RECEIVED], environ[PATHS]) == (1.5, ["/mutate"])
