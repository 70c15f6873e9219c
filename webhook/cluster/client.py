"""A Kubernetes API client that returns raw JSON bytes and plain dicts."""

import re
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from typing import Self
from urllib.parse import urlencode

import msgspec
import urllib3
from msgspec import field
from msgspec.structs import astuple, replace
from urllib3.exceptions import HTTPError

from webhook import __version__
from webhook.catalog.kind import JSON, T, decode_json
from webhook.cluster.credentials import ClusterError, Credentials, find_credentials
from webhook.cluster.server_clock import ServerClock
from webhook.placement.objects.fields import JsonObject

# Objects of a page, and bytes. A namespace user can create pods of 3 MB, so `limit` follows the size of the last page:
# the API server knows no limit in bytes. A larger response than MAX_PAGE_BYTES is dropped, and read in smaller pages.
FIRST_PAGE, MAX_PAGE = 100, 500
PAGE_BYTES = 4 * 1024 * 1024
MAX_PAGE_BYTES = 16 * 1024 * 1024
CONNECT_TIMEOUT = 5.0  # seconds
LIST_TIMEOUT = 60.0  # seconds for one page
# As in client-go: an overloaded API server answers 429, also after its start. A list from the start would add load.
TRIES, RETRY_AFTER = 11, 1.0  # of a page or a watch, and seconds
# A quiet watch gets its first bookmark after 60 to 120 s (seen on Kubernetes 1.36), then one a minute. A watch without
# any data for longer is treated as broken.
WATCH_SILENCE_TIMEOUT = 150.0  # seconds


class ListMetadata(msgspec.Struct, frozen=True):
    """The metadata of one page."""

    version: str = msgspec.field(name="resourceVersion", default="")
    more: str = msgspec.field(name="continue", default="")  # the token of the next page; empty on the last one


class Page(msgspec.Struct, frozen=True):
    """One page of a list. Each object is decoded separately, so that a malformed object doesn't fail the page."""

    metadata: ListMetadata = ListMetadata()
    items: list[msgspec.Raw] | None = None


class Event(msgspec.Struct, frozen=True):
    """One event of a watch. The type determines the object: the object of an ERROR event is a Status."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct, frozen=True):
    """The API server's error response."""

    code: int = 0
    message: str = ""


Query = dict[str, str]

_PAGE = msgspec.json.Decoder(Page)
_EVENT = msgspec.json.Decoder(Event)
_STATUS = msgspec.json.Decoder(Status)
_OBJECT = msgspec.json.Decoder(JsonObject)
_REQUEST_ERRORS = (HTTPError, OSError, ValueError)


def cause_of(error: BaseException) -> str:
    """Return why a request failed, in words. Only system errors are quoted: others may contain the token."""
    while not isinstance(error, OSError):
        quoted = next((each for each in error.args if isinstance(each, Exception)), None)
        if (inner := error.__cause__ or quoted or error.__context__) is None:
            break
        error = inner
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or 'closed').replace('_', ' ').lower()}"
    if isinstance(error, TimeoutError | urllib3.exceptions.TimeoutError):
        return "no response in time"
    if isinstance(error, OSError | HTTPError | HTTPException):
        return getattr(error, "strerror", None) or "the connection was closed"
    return "the request is invalid"


def without_password(url: str) -> str:
    """Return a URL without the user and password before the host."""
    return re.sub("//[^/]*@", "//", url)


class ClusterClient(Credentials, frozen=True):
    """A client for one API server with one set of credentials. Thread-safe."""

    silence: float = WATCH_SILENCE_TIMEOUT  # for how many seconds a watch may receive nothing
    sleep: Callable[[float], object] = time.sleep
    clock: ServerClock = field(default_factory=ServerClock)

    def impersonating(self, user: str, groups: tuple[str, ...] = ()) -> Self:
        """Return a client that acts as another user. Its requests fail without the right to impersonate that user."""
        return replace(self, user=user, groups=groups)

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Create a client from the given kubeconfig, else the default kubeconfig, else the pod's service account.

        Raises ClusterError if no credentials are usable.
        """
        return cls(*astuple(find_credentials(kubeconfig, context)))

    def pages(self, path: str, *, accept: str = JSON, **query: str) -> Iterator[tuple[str, list[msgspec.Raw]]]:
        """List the objects at a path. Yields each page as the resource version and the items. Raises ClusterError."""
        limit, more = FIRST_PAGE, True
        while more:
            query["limit"] = str(limit)
            size = MAX_PAGE_BYTES + 1 if limit > 1 else None
            body = self._patiently(partial(self._read_body, "GET", path, query, LIST_TIMEOUT, accept=accept, size=size))
            if len(body) == size:
                limit = max(1, limit // 8)
                continue
            limit = max(1, min(MAX_PAGE, 4 * limit, limit * PAGE_BYTES // (len(body) or 1)))
            page = _decode(_PAGE, body)
            yield page.metadata.version, page.items or []
            more = bool(page.metadata.more)
            query["continue"] = page.metadata.more

    def watch(
        self, path: str, version: str, seconds: int, *, accept: str = JSON, **query: str
    ) -> Iterator[tuple[str, msgspec.Raw]]:
        """Start a watch at a resource version and iterate over the type and the object of each event.

        The API server ends the watch after about `seconds`, which also ends the iterator. Both the call and the
        iterator raise ClusterError, with code 410 if the version is too old.
        """
        query |= {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query |= {"timeoutSeconds": str(seconds)}
        return _events(self._patiently(partial(self._send, "GET", path, query, self.silence, accept=accept)))

    def _patiently(self, request: Callable[[], T]) -> T:
        for _ in range(TRIES - 1):
            try:
                return request()
            except ClusterError as error:
                if error.code != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
            self.sleep(RETRY_AFTER)
        return request()

    def get(self, path: str, timeout: float = LIST_TIMEOUT) -> JsonObject | None:
        """Read one object; return None if it or its kind doesn't exist. Raises ClusterError."""
        try:
            return _decode(_OBJECT, self._read_body("GET", path, {}, timeout))
        except ClusterError as error:
            if error.code != 404:
                raise
        return None

    def send(
        self, method: str, path: str, body: JsonObject, timeout: float, warnings: list[str] | None = None
    ) -> JsonObject:
        """Write one object and return the result, {} if deleted. Adds the response's warnings. Raises ClusterError."""
        written = self._read_body(method, path, {}, timeout, body, warnings=warnings)
        return {} if method == "DELETE" else _decode(_OBJECT, written)  # to decode a deleted pod may take 30 ms

    def _read_body(  # noqa: PLR0913, PLR0917 (the parts of a request)
        self,
        method: str,
        path: str,
        query: Query,
        timeout: float,
        body: JsonObject | None = None,
        accept: str = JSON,
        warnings: list[str] | None = None,
        size: int | None = None,
    ) -> bytes:
        """Read a response, at most its first `size` bytes. Each part of it may take `timeout` seconds."""
        response = self._send(method, path, query, timeout, body, accept)
        if warnings is not None:
            warnings += response.headers.getlist("Warning")
        try:
            return response.read(size)
        except _REQUEST_ERRORS as error:
            raise ClusterError(0, f"{method} {path}: the response was interrupted: {cause_of(error)}") from None
        finally:
            response.close()  # after a complete read, the connection is already back in the pool and stays open

    def _send(  # noqa: PLR0913, PLR0917 (the parts of a request)
        self, method: str, path: str, query: Query, timeout: float, body: JsonObject | None = None, accept: str = JSON
    ) -> urllib3.BaseHTTPResponse:
        if not {".", ".."}.isdisjoint(path.split("/")):  # the library would resolve it: `..` is all namespaces
            raise ClusterError(0, f"{method} {path}: no name is . or ..")
        headers = urllib3.HTTPHeaderDict({"Accept": accept, "User-Agent": f"kubevirt-scheduler/{__version__}"})
        if self.user:
            headers["Impersonate-User"] = self.user
        for group in self.groups:
            headers.add("Impersonate-Group", group)
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else JSON
        try:
            if authorization := self.api.authorization().strip():  # a token file may end with a newline
                headers["Authorization"] = authorization
            response = self.api.pool.request(
                method,
                f"{self.api.url}{path}?{urlencode(query)}" if query else f"{self.api.url}{path}",
                body=None if body is None else msgspec.json.encode(body),
                headers=headers,
                timeout=urllib3.Timeout(timeout, CONNECT_TIMEOUT),  # of the whole, and to connect
                preload_content=False,
            )
        except _REQUEST_ERRORS as error:
            raise ClusterError(0, f"{method} {without_password(self.api.url)}{path}: {cause_of(error)}") from None
        self.clock.observe(response.headers.get("Date"))
        if response.status >= 400:
            raise ClusterError(response.status, _error_message(response) or f"{method} {path}: {response.reason}")
        return response


def _error_message(response: urllib3.BaseHTTPResponse) -> str:
    try:
        return _STATUS.decode(response.data).message
    except (*_REQUEST_ERRORS, RecursionError):
        return ""  # a proxy responds, for example, or the API server without the CRD


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    try:
        return decode_json(decoder, body)
    except (ValueError, RecursionError):
        raise ClusterError(0, "unexpected response: not a Kubernetes object") from None


def _events(response: urllib3.BaseHTTPResponse) -> Iterator[tuple[str, msgspec.Raw]]:
    try:
        for line in filter(bytes.strip, response):
            event = _decode(_EVENT, line)
            if event.type == "ERROR":
                status = _decode(_STATUS, event.object)
                raise ClusterError(status.code, status.message or "the watch failed")
            yield event.type, event.object
    except _REQUEST_ERRORS as error:
        raise ClusterError(0, f"the watch was interrupted: {cause_of(error)}") from None
    finally:
        # Don't return the connection to the pool: the rest of the watch response would never end.
        response.close()
