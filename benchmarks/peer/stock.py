"""Our decision in a plain Flask app behind gunicorn's own gthread, with its defaults but for TLS and eight threads.

What our server would be without a worker of its own: neither metrics nor logs, and from a snapshot.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from flask import Flask, Response, request
from gunicorn.app.base import BaseApplication

from webhook.cluster import snapshot
from webhook.placement.injector import inject
from webhook.placement.settings import Settings
from webhook.serving.review import read_review, write_review

KEEPALIVE = 95  # seconds; with its own 2 it would close connections between two rounds


def app(file: Path) -> Flask:
    """Make the app of one route."""
    made, store, settings = Flask("stock"), snapshot.load([file]), Settings()

    @made.post("/mutate")
    def mutate() -> Response:
        received = read_review(request.get_data())
        return Response(write_review(received["uid"], inject(received, store, settings)), mimetype="application/json")

    return made


class Stock(BaseApplication):
    """Gunicorn with these options."""

    def __init__(self, made: Flask, options: dict[str, Any]) -> None:
        self._made, self._options = made, options
        super().__init__()

    def load_config(self) -> None:
        """Set what is not to be its default."""
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Return the app."""
        return self._made


def main(file: str, tls: str) -> None:
    """Serve until a signal comes."""
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
