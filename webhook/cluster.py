"""The API server as iterators of bytes and plain dicts: the one place that knows the Kubernetes client.

Of the client we use credentials, trust and connections. Its informer can't hold custom resources, its `Watch` turns a
410 into a KeyError unless it builds typed models, and those models lose the fields that they do not know.
"""

from collections.abc import Iterator
from typing import Any, Self

import msgspec
import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException

from webhook.shape import JsonObject
from webhook.wire import Event, Page, Status

PAGE_SIZE = 500
CONNECT_TIMEOUT = 5.0  # seconds
LIST_TIMEOUT = 60.0  # seconds for one page
# A quiet watch still hears a bookmark about once a minute; one that hears nothing for longer has lost its server.
SILENCE = 90.0  # seconds

_PAGE = msgspec.json.Decoder(Page)
_EVENT = msgspec.json.Decoder(Event)
_STATUS = msgspec.json.Decoder(Status)


class ClusterError(Exception):
    """The API server refused, or could not be asked. `code` is the HTTP status, 0 where there was no answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Cluster:
    """One API server, and who we are to it. Threads may share it."""

    def __init__(self, configuration: Configuration) -> None:
        configuration.retries = False  # who asks knows better when to ask again
        # One connection for each watch and a few for lists, reads and events.
        configuration.connection_pool_maxsize = 16
        self._client = ApiClient(configuration)

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Find the credentials: a kubeconfig that is named, else the usual one, else those of the pod that we run in.

        Raises ClusterError where there are none that can be used.
        """
        configuration = Configuration()
        try:
            if kubeconfig or context:
                load: Any = config.load_kube_config
                load(kubeconfig, context, client_configuration=configuration)
            else:
                load = config.load_config
                load(client_configuration=configuration)
        except (config.ConfigException, OSError, ValueError) as error:
            raise ClusterError(0, f"no credentials for a cluster: {error}") from None
        return cls(configuration)

    def pages(self, path: str, **query: str) -> Iterator[tuple[str, list[msgspec.Raw]]]:
        """List the objects at a path, a page at a time, each with the list's resource version. Raises ClusterError."""
        query["limit"] = str(PAGE_SIZE)
        while True:
            page: Page = _decoded(_PAGE, self._body(path, query, LIST_TIMEOUT))
            yield page.metadata.version, page.items or []
            if not page.metadata.more:
                return
            query["continue"] = page.metadata.more

    def watch(self, path: str, version: str, seconds: int, **query: str) -> Iterator[tuple[str, msgspec.Raw]]:
        """Yield the type and the object of each event since a resource version, for about so many seconds.

        Ends when the server ends it. Raises ClusterError, with code 410 when the version is too old to go on from.
        """
        query |= {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        response = self._send("GET", path, query | {"timeoutSeconds": str(seconds)}, SILENCE)
        try:
            for line in _lines(response):
                event: Event = _decoded(_EVENT, line)
                if event.type == "ERROR":
                    status: Status = _decoded(_STATUS, event.object)
                    raise ClusterError(status.code, status.message or "the watch failed")
                yield event.type, event.object
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(0, f"the watch broke off: {type(error).__name__}") from None
        finally:
            # Not given back to the pool: what is left of the answer would never end.
            response.close()

    def get(self, path: str, timeout: float = LIST_TIMEOUT) -> bytes | None:
        """Read one object; None where there is none. Raises ClusterError."""
        try:
            return self._body(path, {}, timeout)
        except ClusterError as error:
            if error.code == 404:
                return None
            raise

    def send(self, method: str, path: str, body: JsonObject, timeout: float) -> JsonObject:
        """Write one object and return what became of it. Raises ClusterError."""
        response = self._send(method, path, {}, timeout, body)
        try:
            answer: JsonObject = msgspec.json.decode(response.data)
        except (urllib3.exceptions.HTTPError, OSError, msgspec.DecodeError) as error:
            raise ClusterError(0, f"{path}: {type(error).__name__}") from None
        return answer

    def _body(self, path: str, query: dict[str, str], timeout: float) -> bytes:
        response = self._send("GET", path, query, timeout)
        try:
            return bytes(response.data)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(0, f"{path}: {type(error).__name__}") from None

    def _send(
        self, method: str, path: str, query: dict[str, str], timeout: float, body: JsonObject | None = None
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        items = list(query.items())
        client: Any = self._client  # typed as if each call had a model of its own
        try:
            request = client.param_serialize(method, path, None, items, headers, body, auth_settings=["BearerToken"])
            answer = client.call_api(*request, _request_timeout=(CONNECT_TIMEOUT, timeout))
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(0, f"{path}: {type(error).__name__}") from None
        response: urllib3.BaseHTTPResponse = answer.response
        if response.status >= 400:
            raise ClusterError(response.status, _complaint(response))
        return response


def _complaint(response: urllib3.BaseHTTPResponse) -> str:
    try:
        return _STATUS.decode(response.data).message or str(response.reason)
    except (urllib3.exceptions.HTTPError, OSError, msgspec.DecodeError, UnicodeDecodeError):
        return str(response.reason)


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ClusterError(0, "the answer is not what an API server sends") from None


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Split the answer into lines as they come; the client has no way to do it that keeps bytes."""
    rest = b""
    for chunk in response.stream(64 * 1024, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, lines)
    if rest:
        yield rest
