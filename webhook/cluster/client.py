"""A Kubernetes API client that returns raw JSON bytes and plain dicts. Only this module imports `kubernetes`.

The module uses the library only for kubeconfigs: their credentials, TLS trust and proxies. A pod needs none of that, so
it doesn't import the library, which takes 0.4 s and 16 MB. The library's informer can't hold custom resources. Its
`Watch` turns a 410 into a KeyError unless `Watch` builds typed models, and typed models drop unknown fields.
"""

import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlencode

import msgspec
import urllib3
from msgspec import Struct, field
from msgspec.structs import replace
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from urllib3.util.ssl_ import create_urllib3_context

from certs import ApiError
from webhook import __version__
from webhook.catalog.kind import JSON, T, decode_json
from webhook.cluster.server_clock import ServerClock
from webhook.placement.objects.fields import JsonObject, mapping, text

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


class ClusterError(ApiError):
    """A failed request to the API server. `code` is the HTTP status, 0 without a response."""


# Connections: one for each watch, and a few for lists, reads and Events.
POOL_SIZE = 16
# A server that vanished and came back resets the connection that the kernel probes.
KEEP_ALIVE = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *[
        (socket.IPPROTO_TCP, getattr(socket, name), seconds)
        for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 9))
        if hasattr(socket, name)
    ],
]
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def _make_pool(**options: Any) -> urllib3.PoolManager:
    # The caller decides when to retry.
    return _trusting_as_go(urllib3.PoolManager(retries=False, maxsize=POOL_SIZE, socket_options=KEEP_ALIVE, **options))


def _trusting_as_go(pool: urllib3.PoolManager) -> urllib3.PoolManager:
    """Accept the CAs that kubelet and kubectl accept, such as one without a key usage extension.

    From Python 3.13 on, the default also sets VERIFY_X509_STRICT: https://github.com/kubernetes-client/python/issues/2394
    """
    options = pool.connection_pool_kw
    context = create_urllib3_context(cert_reqs=options.get("cert_reqs"), verify_flags=ssl.VERIFY_X509_PARTIAL_CHAIN)
    if not (options.get("ca_certs") or options.get("ca_cert_data")):
        context.load_default_certs()
    options["ssl_context"] = context
    return pool


class Api(Struct, frozen=True):
    """An API server with credentials. `authorization` returns the header of the next request, or an empty string."""

    url: str
    pool: urllib3.PoolManager = field(default_factory=_make_pool)
    authorization: Callable[[], str] = str


class ClusterClient(Struct, frozen=True):
    """A client for one API server with one set of credentials. Thread-safe."""

    api: Api
    silence: float = WATCH_SILENCE_TIMEOUT  # for how many seconds a watch may receive nothing
    namespace: str = "default"  # the default namespace
    user: str = ""  # another user to impersonate
    name: str = ""  # the kubeconfig's context; empty in a pod
    groups: tuple[str, ...] = ()  # of that user
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
        default = _default_files()
        files = kubeconfig or default
        # Unlike a Path's, these functions don't raise: without a home, or for a file in a folder of another user.
        exist = (os.path.isfile(os.path.expanduser(file)) for file in default.split(os.pathsep))  # noqa: PTH111, PTH113
        if kubeconfig or context or any(exist):
            if find_spec("kubernetes") is None:  # as in the image
                problem = "reading a kubeconfig requires the Python package kubernetes, which the image does not have"
                raise ClusterError(0, f"no cluster credentials: kubeconfig {files}: {problem}")
            contexts, current = _contexts(files)
            name = context or current
            fields = contexts.get(name, {})
            api = _kubeconfig_api(files, name or None)
            namespace = str(fields.get("namespace") or "default")
            groups = tuple(map(str, fields.get("as-groups") or ()))
            if token := text(fields, "tokenFile"):
                file = Path(text(fields, "folder"), token)
                api = replace(api, authorization=lambda: f"Bearer {file.read_text()}")
            # The library only logs why the program failed, and every request would be that of an anonymous user.
            program = text(fields, "exec", "command")
            certificate = api.pool.connection_pool_kw.get("cert_file")
            if program and not (certificate or api.authorization()):
                raise ClusterError(0, f"no cluster credentials: kubeconfig {files}: {program} failed (see above)")
            return cls(api, namespace=namespace, user=text(fields, "as"), name=name, groups=groups)
        return cls(pod_api(f"no kubeconfig {default}"))

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


# What the library raises for an unusable kubeconfig, besides its own errors and those of YAML.
_FILE_ERRORS = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


def _contexts(files: str) -> tuple[dict[str, JsonObject], str]:
    """Return each context with the fields of its user, and the current one. Both are empty for an unusable file.

    Loading the credentials reports it. Unlike kubectl, the library lists no context without a current one, takes that
    of the last file, ignores whom a user impersonates, and reads a token file once:
    https://github.com/kubernetes/kubernetes/blob/v1.37.2/staging/src/k8s.io/client-go/tools/clientcmd/loader.go
    """
    import yaml  # noqa: PLC0415 (as the library below)
    from kubernetes.config import ConfigException, kube_config  # noqa: PLC0415 (a replica in a pod doesn't need it)

    try:
        merged: Any = kube_config.KubeConfigMerger(files)  # type: ignore[no-untyped-call]
        users = {
            text(each.value, "name"): mapping(each.value, "user") | {"folder": str(Path(each.path).parent)}
            for each in merged.config.value["users"]
        }
        found = {
            text(each, "name"): users.get(text(each, "context", "user"), {}) | mapping(each, "context")
            for each in (node.value for node in merged.config.value["contexts"])
        }
        current = (str(each.get("current-context") or "") for each in merged.config_files.values())
        return found, next(filter(None, current), "")
    except (ConfigException, yaml.YAMLError, *_FILE_ERRORS):
        return {}, ""


def context_names(kubeconfig: str | None) -> list[str]:
    """List the contexts of a kubeconfig, by default the user's; empty if it can't be read."""
    return list(_contexts(kubeconfig or _default_files())[0])


def _default_files() -> str:
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _kubeconfig_api(files: str, context: str | None) -> Api:
    import yaml  # noqa: PLC0415 (as the library below)
    from kubernetes import client, config  # noqa: PLC0415 (a replica in a pod doesn't need it)

    configuration: Any = client.Configuration()
    configuration.retries, configuration.socket_options = False, KEEP_ALIVE
    configuration.connection_pool_maxsize = POOL_SIZE
    urllib3.disable_warnings()  # with `insecure-skip-tls-verify`, of each request

    def authorization() -> str:
        try:  # may run a program that gets a new token
            return configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
        except config.ConfigException as error:
            raise ClusterError(0, f"no cluster credentials: kubeconfig {files}: {_without_content(error)}") from None

    try:
        config.load_kube_config(files, context, client_configuration=configuration)  # type: ignore[no-untyped-call]
        if configuration.proxy and (user := urllib3.util.parse_url(configuration.proxy).auth):
            configuration.proxy_headers = urllib3.make_headers(proxy_basic_auth=unquote(user))
        pool = _trusting_as_go(client.rest.RESTClientObject(configuration).pool_manager)
    except config.ConfigException as error:
        problem = _without_content(error)
    except ImportError:
        problem = "a SOCKS proxy requires the Python package PySocks"
    except (yaml.YAMLError, *_FILE_ERRORS) as error:
        problem = f"cannot read the file: {_file_problem(error)}"
    else:
        return Api(configuration.host, pool, authorization)
    raise ClusterError(0, f"no cluster credentials: kubeconfig {files}: {problem}")


def _file_problem(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "unreadable"
    mark = getattr(error, "problem_mark", None)
    return f"invalid YAML in line {mark.line + 1}" if mark else "not a kubeconfig"


def _without_content(error: Exception) -> str:
    # The library quotes an entry's content in braces; for a user, that may include the token.
    return str(error).removeprefix("Invalid kube-config file. ").partition("{")[0]


def pod_api(source: str, folder: Path = SERVICE_ACCOUNT) -> Api:
    """Return the API server with the pod's service account. Each request reads the token: the kubelet replaces it."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    try:
        ca = (folder / "ca.crt").read_text() if host and port else ""
    except OSError as error:
        raise ClusterError(0, f"no cluster credentials: {source}: {error}") from None
    if not ca:
        raise ClusterError(0, f"no cluster credentials: {source}, and not running in a pod")
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Api(url, _make_pool(ca_cert_data=ca), lambda: f"Bearer {(folder / 'token').read_text()}")


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
