"""A Kubernetes API client that returns raw JSON bytes and plain dicts. Only this module imports `kubernetes`.

The module uses the library only for credentials, TLS trust and connections. The library's informer can't hold custom
resources. Its `Watch` turns a 410 into a KeyError unless `Watch` builds typed models, and typed models drop unknown
fields.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException

from certs.cluster import ApiError
from webhook.cluster.api_types import JSON
from webhook.placement.objects.fields import JsonObject

# The API server stores no object over 3 MiB, so a line over this limit isn't a watch event.
MAX_LINE_BYTES = 16 * 1024 * 1024  # bytes
# Objects of a page, and bytes. A namespace user can create pods of 3 MB, so `limit` follows the size of the last page:
# the API server knows no limit in bytes. A larger response than MAX_PAGE_BYTES is dropped, and read in smaller pages.
FIRST_PAGE, MAX_PAGE = 100, 500
PAGE_BYTES, MAX_PAGE_BYTES = 4 * 1024 * 1024, 16 * 1024 * 1024
CONNECT_TIMEOUT = 5.0  # seconds
LIST_TIMEOUT = 60.0  # seconds for one page
# A quiet watch gets its first bookmark after 60 to 120 s (seen on Kubernetes 1.36), then one a minute. A watch without
# any data for longer is treated as broken.
WATCH_SILENCE_TIMEOUT = 150.0  # seconds
READ_SIZE = 1024 * 1024  # bytes


class ListMetadata(msgspec.Struct, frozen=True):
    """The metadata of one page. `more` is the token for the next page, empty on the last one."""

    version: str = msgspec.field(name="resourceVersion", default="")
    more: str = msgspec.field(name="continue", default="")


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


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split chunks of any size into lines. Raises ValueError for a line over MAX_LINE_BYTES."""
    rest = bytearray()
    for chunk in chunks:
        *ends, tail = chunk.split(b"\n")
        for end in ends:
            line = bytes(rest + end)
            rest.clear()
            if line:
                yield line
        rest += tail
        if len(rest) > MAX_LINE_BYTES:
            raise ValueError("a line exceeds the limit")
    if rest:
        yield bytes(rest)


T = TypeVar("T")
Query = dict[str, str]

_PAGE = msgspec.json.Decoder(Page)
_EVENT = msgspec.json.Decoder(Event)
_STATUS = msgspec.json.Decoder(Status)
_OBJECT = msgspec.json.Decoder(JsonObject)
# A kubeconfig that the library can't read.
_UNUSABLE = config.ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError
_REQUEST_ERRORS = (ApiException, config.ConfigException, urllib3.exceptions.HTTPError, OSError, ValueError)


class ClusterError(ApiError):
    """A failed request to the API server. `code` is the HTTP status, 0 without a response."""


class _ResponseTooLarge(ClusterError):
    """The response has more bytes than allowed."""


class ClusterClient:
    """A client for one API server with one set of credentials. Thread-safe.

    `load` reads the credentials: once in the constructor, and again after a 401 response. `silence` is how many seconds
    a watch may receive nothing. `namespace` is the default namespace. `user` is another user to impersonate. `name` is
    the kubeconfig's context, empty in a pod.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (only `load` is required)
        self,
        load: Callable[[], Configuration],
        silence: float = WATCH_SILENCE_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        namespace: str = "default",
        user: str = "",
        name: str = "",
    ) -> None:
        self.namespace, self.name, self._user = namespace, name, user
        self._load, self._silence, self._clock = load, silence, clock
        self._reload_lock = threading.Lock()
        self._client = _api_client(load(), user)

    def impersonating(self, user: str) -> Self:
        """Return a client that acts as another user. Its requests fail without the right to impersonate that user."""
        return type(self)(self._load, self._silence, self._clock, self.namespace, user, self.name)

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Create a client from the given kubeconfig, else the default kubeconfig, else the pod's service account.

        Raises ClusterError if no credentials are usable.
        """
        default = os.environ.get("KUBECONFIG") or "~/.kube/config"
        files = kubeconfig or default
        if kubeconfig or context or any(Path(file).expanduser().is_file() for file in default.split(os.pathsep)):
            load = partial(_load_configuration, f"kubeconfig {files}", config.load_kube_config, files, context)
            name, namespace = _context(files, context)
            return cls(load, namespace=namespace, name=name)
        # The library's own `load_config` prints its attempts to standard output.
        source = f"no kubeconfig {default}, and not running in a pod"
        return cls(partial(_load_configuration, source, config.load_incluster_config))

    def pages(self, path: str, *, accept: str = JSON, **query: str) -> Iterator[tuple[str, list[msgspec.Raw]]]:
        """List the objects at a path. Yields each page as the resource version and the items. Raises ClusterError."""
        limit, more = FIRST_PAGE, True
        while more:
            query["limit"] = str(limit)
            size = MAX_PAGE_BYTES if limit > 1 else 0
            try:
                body = self._read_body("GET", path, query, LIST_TIMEOUT, accept=accept, max_bytes=size)
            except _ResponseTooLarge:
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
        return _events(self._send("GET", path, query, self._silence, accept=accept))

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
        """Write one object and return the object in the response. Adds the response's warnings. Raises ClusterError."""
        return _decode(_OBJECT, self._read_body(method, path, {}, timeout, body, warnings=warnings))

    def _read_body(  # noqa: PLR0913, PLR0917 (the parts of a request)
        self,
        method: str,
        path: str,
        query: Query,
        timeout: float,
        body: JsonObject | None = None,
        accept: str = JSON,
        warnings: list[str] | None = None,
        max_bytes: int = 0,
    ) -> bytes:
        deadline, chunks, size = self._clock() + timeout, [], 0
        response = self._send(method, path, query, timeout, body, accept)
        if warnings is not None:
            warnings += response.headers.getlist("Warning")
        try:
            # Read in chunks: the library's timeout restarts with each chunk, so only this loop limits the total time.
            while chunk := response.read1(READ_SIZE):
                chunks.append(chunk)
                size += len(chunk)
                if max_bytes and size > max_bytes:
                    raise _ResponseTooLarge(0, f"{method} {path}: the response is too large")
                if self._clock() > deadline:
                    raise ClusterError(0, f"{method} {path}: the response took too long")
        except _REQUEST_ERRORS as error:
            raise ClusterError(0, f"{method} {path}: the response was interrupted ({type(error).__name__})") from None
        finally:
            response.close()  # after a complete read, the connection is already back in the pool and stays open
        return b"".join(chunks)

    def _send(  # noqa: PLR0913, PLR0917 (the parts of a request)
        self, method: str, path: str, query: Query, timeout: float, body: JsonObject | None = None, accept: str = JSON
    ) -> urllib3.BaseHTTPResponse:
        client, arguments = self._client, (method, path, timeout, list(query.items()), body, accept)
        response = _request(client, *arguments)
        if response.status == 401:
            response.close()
            response = _request(self._reloaded(client), *arguments)
        if response.status >= 400:
            raise ClusterError(response.status, _error_message(response))
        return response

    def _reloaded(self, rejected: Any) -> ApiClient:
        # The library rereads a service account's token once a minute, but never a kubeconfig's.
        with self._reload_lock:
            old: Any = self._client
            if old is rejected:
                self._client = _api_client(self._load(), self._user)
                old.close()
            return self._client


def _context(files: str, context: str | None) -> tuple[str, str]:
    """Return the name and the namespace of a context, by default of the current one."""
    try:
        contexts, current = config.list_kube_config_contexts(files)  # type: ignore[no-untyped-call]
        chosen = next((each for each in contexts if each["name"] == context), current)
        return str(chosen["name"]), str(chosen["context"].get("namespace") or "default")
    except _UNUSABLE:
        return "", "default"  # loading the credentials from the same file reports the error


def context_names(kubeconfig: str | None) -> list[str]:
    """List the contexts of a kubeconfig, by default the user's; empty if it can't be read."""
    try:
        contexts, _ = config.list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
        return [str(each["name"]) for each in contexts]
    except _UNUSABLE:
        return []


def _load_configuration(source: str, load: Any, *arguments: str | None) -> Configuration:
    configuration = Configuration()
    try:
        load(*arguments, client_configuration=configuration)
    except config.ConfigException as error:
        # The library quotes an entry's content in braces; for a user, that may include the token.
        problem = str(error).removeprefix("Invalid kube-config file. ").partition("{")[0]
    except (OSError, yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        problem = f"cannot read the file ({type(error).__name__})"
    else:
        return configuration
    raise ClusterError(0, f"no cluster credentials: {source}: {problem}")


def _api_client(configuration: Configuration, user: str) -> ApiClient:
    configuration.retries = False  # the caller decides when to retry
    configuration.keep_alive = True  # TCP keepalive: a server that vanished and came back resets the probed connection
    configuration.connection_pool_maxsize = 16  # one for each watch, and a few for lists, reads and Events
    client = ApiClient(configuration)
    if user:
        client.set_default_header("Impersonate-User", user)  # type: ignore[no-untyped-call]
    return client


def _request(client: Any, method: str, path: str, timeout: float, *content: Any) -> urllib3.BaseHTTPResponse:
    query, body, accept = content
    headers = {"Accept": accept}
    if body is not None:
        headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else JSON
    try:
        request = client.param_serialize(method, path, None, query, headers, body, auth_settings=["BearerToken"])
        if "authorization" in request[2]:  # a token file may end with a newline, which a header must not contain
            request[2]["authorization"] = request[2]["authorization"].strip()
        # A single number limits the sum: the time to connect plus the time to the first byte.
        limits = timeout if timeout <= CONNECT_TIMEOUT else (CONNECT_TIMEOUT, timeout)
        answer = client.call_api(*request, _request_timeout=limits)
    except _REQUEST_ERRORS as error:
        # The library wraps the error for an untrusted certificate in an ApiException.
        reason = str(error.reason).replace("\n", ": ") if isinstance(error, ApiException) else type(error).__name__
        raise ClusterError(0, f"{method} {path}: {reason}") from None
    response: urllib3.BaseHTTPResponse = answer.response
    return response


def _error_message(response: urllib3.BaseHTTPResponse) -> str:
    try:
        return _STATUS.decode(response.data).message or str(response.reason)
    except (*_REQUEST_ERRORS, RecursionError):
        return str(response.reason)


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError):
        raise ClusterError(0, "unexpected response: not a Kubernetes object") from None


def _events(response: urllib3.BaseHTTPResponse) -> Iterator[tuple[str, msgspec.Raw]]:
    try:
        for line in lines(iter(lambda: response.read1(READ_SIZE), b"")):
            event = _decode(_EVENT, line)
            if event.type == "ERROR":
                status = _decode(_STATUS, event.object)
                raise ClusterError(status.code, status.message or "the watch failed")
            yield event.type, event.object
    except _REQUEST_ERRORS as error:
        raise ClusterError(0, f"the watch was interrupted ({type(error).__name__})") from None
    finally:
        # Don't return the connection to the pool: the rest of the watch response would never end.
        response.close()
