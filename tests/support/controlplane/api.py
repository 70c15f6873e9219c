"""Talk to the API server in plain HTTP: a path and a dict out, a dict back."""

from __future__ import annotations

import http.client
import json
import ssl
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any

Object = dict[str, Any]
LOOPBACK = "127.0.0.1"


class ApiError(Exception):
    """What the API server refused: `status` is the HTTP status, `reason` the API's word for it (`NotFound`)."""

    def __init__(self, status: int, answer: Object) -> None:
        super().__init__(f"{status} {answer.get('reason')}: {answer.get('message')}")
        self.status = status
        self.reason = answer.get("reason")


class Api:
    """The API server at a port of loopback, to whoever holds the token.

    Each request has a connection of its own: threads may share it, and an API server that comes back is no trouble.
    """

    def __init__(self, port: int, ca: Path, token: str) -> None:
        self.url = f"https://{LOOPBACK}:{port}"
        self.ca = ca
        self.token = token
        self.port = port

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        # Not before the first request: the API server writes its certificate when it first starts.
        return ssl.create_default_context(cafile=str(self.ca))

    def request(self, method: str, path: str, body: object = None, token: str | None = None) -> Object:
        """Send one request, with our token or another one; raise ApiError unless it succeeds.

        A PATCH is a JSON patch when its body is a list, otherwise a merge patch.
        """
        patch = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        headers = {
            "Authorization": f"Bearer {token or self.token}",
            "Content-Type": patch if method == "PATCH" else "application/json",
        }
        connection = http.client.HTTPSConnection(LOOPBACK, self.port, context=self._trust, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        # An API server that is only just starting may answer in plain text.
        plain = response.headers.get_content_type() != "application/json"
        answer: Object = {"message": text.decode(errors="replace")} if plain else json.loads(text)
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise ApiError(response.status, answer)
        return answer

    def write_kubeconfig(self, path: Path, token: str | None = None) -> Path:
        """Write the kubeconfig of our token's owner, or of another's, and return its path."""
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token or self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config))  # JSON is YAML
        path.chmod(0o600)  # Helm warns about one that others may read
        return path
