"""The API server as iterators of bytes and plain dicts: the one place that knows the Kubernetes client.

Of the client we use credentials, trust and connections. Its informer can't hold custom resources, its `Watch` turns a
410 into a KeyError unless it builds typed models, and those models lose the fields that they do not know.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
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
from webhook.cluster.wire import Event, Page, Status, lines
from webhook.placement.shape import JsonObject

PAGE_SIZE = 500
CONNECT_TIMEOUT = 5.0  # seconds
LIST_TIMEOUT = 60.0  # seconds for one page
# A quiet watch hears its first bookmark after 60 to 120 s (seen on 1.36), then one a minute. After longer all is lost.
SILENCE = 150.0  # seconds
AT_ONCE = 1024 * 1024  # bytes

T = TypeVar("T")
Query = dict[str, str]

_PAGE = msgspec.json.Decoder(Page)
_EVENT = msgspec.json.Decoder(Event)
_STATUS = msgspec.json.Decoder(Status)
_OBJECT = msgspec.json.Decoder(JsonObject)
_BROKEN = (ApiException, config.ConfigException, urllib3.exceptions.HTTPError, OSError, ValueError)


class ClusterError(ApiError):
    """The API server refused, or could not be asked. `code` is the HTTP status, 0 where there was no answer."""


class ClusterClient:
    """One API server, and who we are to it. Threads may share it.

    `load` reads the credentials, at first and whenever the API server does not take them any more. `silence` is for how
    many seconds a watch may say nothing. `namespace` is the one that is meant where none is named.
    """

    def __init__(
        self,
        load: Callable[[], Configuration],
        silence: float = SILENCE,
        clock: Callable[[], float] = time.monotonic,
        namespace: str = "default",
    ) -> None:
        self.namespace = namespace
        self._load, self._silence, self._clock = load, silence, clock
        self._loading = threading.Lock()
        self._client = _client(load())

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Find the credentials: a kubeconfig that is named, else the usual one, else those of the pod that we run in.

        Raises ClusterError where there are none that can be used.
        """
        usual = os.environ.get("KUBECONFIG") or "~/.kube/config"
        files = kubeconfig or usual
        if kubeconfig or context or any(Path(file).expanduser().is_file() for file in usual.split(os.pathsep)):
            load = partial(_configured, f"kubeconfig {files}", config.load_kube_config, files, context)
            return cls(load, namespace=_namespace(files, context))
        # Not the client's own `load_config`: it says on standard output what it tries.
        return cls(lambda: _configured(f"no kubeconfig {usual}, and no pod around us", config.load_incluster_config))

    def pages(self, path: str, **query: str) -> Iterator[tuple[str, list[msgspec.Raw]]]:
        """List the objects at a path, a page at a time, each with the list's resource version. Raises ClusterError."""
        query["limit"] = str(PAGE_SIZE)
        while True:
            page = _decoded(_PAGE, self._answer("GET", path, query, LIST_TIMEOUT))
            yield page.metadata.version, page.items or []
            if not page.metadata.more:
                return
            query["continue"] = page.metadata.more

    def watch(self, path: str, version: str, seconds: int, **query: str) -> Iterator[tuple[str, msgspec.Raw]]:
        """Begin to watch from a resource version, for about so many seconds: the type and the object of each event.

        The iterator ends when the server ends it. Both the call and the iterator raise ClusterError, with code 410
        when the version is too old to go on from.
        """
        query |= {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        return _events(self._send("GET", path, query | {"timeoutSeconds": str(seconds)}, self._silence))

    def get(self, path: str, timeout: float = LIST_TIMEOUT) -> bytes | None:
        """Read one object; None where there is none. Raises ClusterError."""
        try:
            return self._answer("GET", path, {}, timeout)
        except ClusterError as error:
            if error.code != 404:
                raise
        return None

    def send(self, method: str, path: str, body: JsonObject, timeout: float) -> JsonObject:
        """Write one object and return what became of it. Raises ClusterError."""
        return _decoded(_OBJECT, self._answer(method, path, {}, timeout, body))

    def _answer(self, method: str, path: str, query: Query, timeout: float, body: JsonObject | None = None) -> bytes:
        last, parts = self._clock() + timeout, []
        response = self._send(method, path, query, timeout, body)
        try:
            # Bit by bit: the client's own timeout begins anew with each of them.
            while part := response.read1(AT_ONCE):
                parts.append(part)
                if self._clock() > last:
                    raise ClusterError(0, f"{method} {path}: the answer takes too long")
        except _BROKEN as error:
            raise ClusterError(0, f"{method} {path}: the answer broke off ({type(error).__name__})") from None
        finally:
            response.close()  # where all was read, the connection is back in the pool and stays open
        return b"".join(parts)

    def _send(
        self, method: str, path: str, query: Query, timeout: float, body: JsonObject | None = None
    ) -> urllib3.BaseHTTPResponse:
        client, request = self._client, (method, path, timeout, list(query.items()), body)
        response = _ask(client, *request)
        if response.status == 401:
            response.close()
            response = _ask(self._renewed(client), *request)
        if response.status >= 400:
            raise ClusterError(response.status, _complaint(response))
        return response

    def _renewed(self, refused: Any) -> ApiClient:
        # The client itself looks at a service account's token once a minute, and never again at a kubeconfig's.
        with self._loading:
            old: Any = self._client
            if old is refused:
                self._client = _client(self._load())
                old.close()
            return self._client


def _namespace(files: str, context: str | None) -> str:
    try:
        known, current = config.list_kube_config_contexts(files)  # type: ignore[no-untyped-call]
        chosen = next((one for one in known if one["name"] == context), current)
        return str(chosen["context"].get("namespace") or "default")
    except (config.ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError):
        return "default"  # what is wrong with the file was said when it was loaded


def _configured(what: str, load: Any, *arguments: str | None) -> Configuration:
    configuration = Configuration()
    try:
        load(*arguments, client_configuration=configuration)
    except config.ConfigException as error:
        # The client names an entry by its content: what stands in braces may be a user with its token.
        problem = str(error).removeprefix("Invalid kube-config file. ").partition("{")[0]
    except (OSError, yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        problem = f"it can't be read ({type(error).__name__})"
    else:
        return configuration
    raise ClusterError(0, f"no credentials for a cluster: {what}: {problem}")


def _client(configuration: Configuration) -> ApiClient:
    configuration.retries = False  # who asks knows better when to ask again
    configuration.keep_alive = True  # TCP's: a server that went without a word and is back cuts off whoever asks
    configuration.connection_pool_maxsize = 16  # one for each watch and a few for lists, reads and events
    return ApiClient(configuration)


def _ask(client: Any, method: str, path: str, timeout: float, *content: Any) -> urllib3.BaseHTTPResponse:
    query, body = content
    headers = {"Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        request = client.param_serialize(method, path, None, query, headers, body, auth_settings=["BearerToken"])
        if "authorization" in request[2]:  # a token file may end with a line break, which no header may
            request[2]["authorization"] = request[2]["authorization"].strip()
        # One number is the time for both: to connect, and to hear the first word.
        limit = timeout if timeout <= CONNECT_TIMEOUT else (CONNECT_TIMEOUT, timeout)
        answer = client.call_api(*request, _request_timeout=limit)
    except _BROKEN as error:
        # The client hides a certificate that is not trusted behind an exception of its own.
        why = str(error.reason).replace("\n", ": ") if isinstance(error, ApiException) else type(error).__name__
        raise ClusterError(0, f"{method} {path}: {why}") from None
    response: urllib3.BaseHTTPResponse = answer.response
    return response


def _complaint(response: urllib3.BaseHTTPResponse) -> str:
    try:
        return _STATUS.decode(response.data).message or str(response.reason)
    except (*_BROKEN, RecursionError):
        return str(response.reason)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError):
        raise ClusterError(0, "the answer is not what an API server sends") from None


def _events(response: urllib3.BaseHTTPResponse) -> Iterator[tuple[str, msgspec.Raw]]:
    try:
        for line in lines(iter(lambda: response.read1(AT_ONCE), b"")):
            event = _decoded(_EVENT, line)
            if event.type == "ERROR":
                status = _decoded(_STATUS, event.object)
                raise ClusterError(status.code, status.message or "the watch failed")
            yield event.type, event.object
    except _BROKEN as error:
        raise ClusterError(0, f"the watch broke off ({type(error).__name__})") from None
    finally:
        # Not given back to the pool: what is left of the answer would never end.
        response.close()
