"""Our decision in a plain Flask app behind gunicorn's own gthread worker, with TLS and eight threads.

It shows our server without its own worker. It has no metrics and no logs, and reads a snapshot.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from flask import Flask, Response, request
from gunicorn.app.base import BaseApplication

from webhook.placement.injector import inject
from webhook.placement.settings import Settings
from webhook.reading import snapshot
from webhook.serving.review.admission_review import read_review, write_review

KEEPALIVE = 95  # seconds; with the default of 2, gunicorn would close connections between two rounds


def app(file: Path) -> Flask:
    """Return the app with its only route."""
    flask_app, store, settings = Flask("stock"), snapshot.load([file]), Settings()

    @flask_app.post("/mutate")
    def mutate() -> Response:
        received = read_review(request.get_data())
        return Response(write_review(received["uid"], inject(received, store, settings)), mimetype="application/json")

    return flask_app


class Stock(BaseApplication):
    """Gunicorn with the given app and options."""

    def __init__(self, flask_app: Flask, options: dict[str, Any]) -> None:
        self._app, self._options = flask_app, options
        super().__init__()

    def load_config(self) -> None:
        """Set the options."""
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Return the app."""
        return self._app


def main(file: str, tls: str) -> None:
    """Serve until a signal arrives."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        host, port = listener.getsockname()
        options = {
            "bind": [f"fd://{listener.fileno()}"],
            "worker_class": "gthread",
            "threads": 8,
            "keepalive": KEEPALIVE,
            "certfile": f"{tls}/tls.crt",
            "keyfile": f"{tls}/tls.key",
            "control_socket_disable": True,
            "post_worker_init": lambda _: print(
                json.dumps({"https": f"{host}:{port}", "ca": f"{tls}/ca.crt"}), flush=True
            ),
        }
        Stock(app(Path(file)), options).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
