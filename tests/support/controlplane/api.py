"""A minimal client of the API server: takes a path and a dict, returns a dict."""

from __future__ import annotations

import http.client
import json
import ssl
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from tests.support.accounts import creator_of, impersonation

Object = dict[str, Any]
LOOPBACK = "127.0.0.1"


class ApiError(Exception):
    """An error response of the API server: `status` is the HTTP status, `reason` that of the Status (`NotFound`)."""

    def __init__(self, status: int, answer: Object) -> None:
        super().__init__(f"{status} {answer.get('reason')}: {answer.get('message')}")
        self.status = status
        self.reason = answer.get("reason")


class Requests(Protocol):
    """Sends the requests of a controller."""

    def request(self, method: str, path: str, body: object = None) -> Object:
        """Send one request. Raises ApiError for a status of 400 or higher."""


class Api:
    """A client of the API server on a loopback port, with a bearer token.

    Threads can share the client: each request takes an idle connection or opens one. It survives a restart of the API
    server.
    """

    def __init__(self, port: int, ca: Path, token: str) -> None:
        self.url = f"https://{LOOPBACK}:{port}"
        self.ca = ca
        self.token = token
        self.port = port
        self._idle: list[http.client.HTTPSConnection] = []

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        # Lazy, because the API server writes its certificate at its first start.
        return ssl.create_default_context(cafile=str(self.ca))

    def request(
        self, method: str, path: str, body: object = None, token: str | None = None, user: str | None = None
    ) -> Object:
        """Send one request with the client's token, or with `token`. Raises ApiError for a status of 400 or higher.

        A PATCH is a JSON patch if its body is a list, otherwise a merge patch. The administrator creates the pod of a
        VM or a share-manager as its controller (`creator_of`), or as `user`; an empty `user` is the administrator.
        """
        patch_type = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        headers = {
            "Authorization": f"Bearer {token or self.token}",
            "Content-Type": patch_type if method == "PATCH" else "application/json",
        }
        if token is None:
            headers |= impersonation(_creator(method, path, body) if user is None else user)
        response, text = self._send(method, path, None if body is None else json.dumps(body), headers)
        # An API server that is starting may respond in plain text.
        plain = response.headers.get_content_type() != "application/json"
        answer: Object = {"message": text.decode(errors="replace")} if plain else json.loads(text)
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise ApiError(response.status, answer)
        return answer

    def find(self, path: str) -> Object | None:
        """Return an object, None if it doesn't exist."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.reason != "NotFound":
                raise
            return None

    def error(
        self, method: str, path: str, body: object = None, token: str | None = None, user: str | None = None
    ) -> str:
        """Send a request, and return its error, empty if it succeeds."""
        try:
            self.request(method, path, body, token, user)
        except ApiError as error:
            return str(error)
        return ""

    def close_idle_connections(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def connect(self, count: int) -> None:
        """Open connections until this many are idle, so that as many requests can be sent at the same moment."""
        while len(self._idle) < count:
            connection = self._connection()
            connection.connect()
            self._idle.append(connection)

    def create_as(self, user: str, path: str, body: str, token: str = "") -> tuple[http.client.HTTPResponse, Object]:
        """Create an object as this user or with this token. Return the response and its body, which may be an error."""
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        response, text = self._send("POST", path, body, headers | impersonation(user))
        return response, json.loads(text)

    def _connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(LOOPBACK, self.port, context=self._tls_context, timeout=60)

    def _send(
        self, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connection()
        is_reused = connection.sock is not None
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read()
        except BaseException as error:
            connection.close()
            if is_reused and isinstance(
                error, (ConnectionError, ssl.SSLError)
            ):  # the API server has closed it meanwhile
                self.close_idle_connections()
                return self._send(method, path, body, headers)
            raise
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return response, text

    def write_kubeconfig(self, path: Path, token: str | None = None, namespace: str = "default") -> Path:
        """Write a kubeconfig with the client's token, or with `token`, and return its path."""
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token or self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config))  # JSON is YAML
        path.chmod(0o600)  # Helm warns about a kubeconfig that others can read
        return path


def _creator(method: str, path: str, body: object) -> str:
    """Return the account that sends such a request in a cluster, empty if it is none of the controllers'."""
    collection = path.partition("?")[0]
    if method != "POST" or not collection.endswith("/pods") or not isinstance(body, dict):
        return ""
    return creator_of(body, collection.split("/")[-2])
