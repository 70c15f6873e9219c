"""A fake Kubernetes API server in a thread. It serves reads, lists and watches, and fails on demand.

It responds like the real API server (seen on Kubernetes 1.36): paged lists, chunked watches from a resource version,
bookmarks, a Status for an error, and plain text for an unknown path. `script` replaces the next responses,
also with malformed ones.
"""

import itertools
import json
import queue
import socket
import ssl
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml

from tests.support.builders import Object
from webhook.placement.objects.fields import text

NAMES = """CSINode CustomResourceDefinition Deployment Event KubeVirt Lease MutatingWebhookConfiguration Namespace Node
PersistentVolume PersistentVolumeClaim Pod PodDisruptionBudget Replica Secret Service Setting ShareManager StorageClass
VirtualMachine VirtualMachineInstance VirtualMachineInstancetype VirtualMachineInstanceMigration Volume""".split()
PLURALS = {name: name.lower() + ("es" if name.endswith("s") else "s") for name in NAMES}
KINDS = {plural: kind for kind, plural in PLURALS.items()}
CUSTOM_RESOURCES = {"ShareManager", "VirtualMachine", "VirtualMachineInstance"}
USER = "system:serviceaccount:kubevirt-scheduler:kubevirt-scheduler"
FINISHED = ("Succeeded", "Failed")
CLEAN, CUT = "the server ends the watch", "the connection breaks"


@dataclass(frozen=True)
class ReceivedRequest:
    """A received request. `verb` is get, list or watch for a read, and the lowercase HTTP method for a write.

    `body` is the JSON of a write, None for a read.
    """

    verb: str
    plural: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any = None


def key_of(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def status(code: int, message: str) -> Object:
    """An error response of the API server."""
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


def forbidden(verb: str, plural: str) -> Object:
    where = 'in API group "" at the cluster scope'
    return status(403, f'{plural} is forbidden: User "{USER}" cannot {verb} resource "{plural}" {where}')


def list_item(item: Object) -> Object:
    """An item of a list: the API server omits the version and the kind, except of custom resources."""
    omitted = () if item["kind"] in CUSTOM_RESOURCES else ("apiVersion", "kind")
    return {key: value for key, value in item.items() if key not in omitted}


def merged(value: Any, patch: Any) -> Any:
    """Return the value after a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    old = value if isinstance(value, dict) else {}
    changed = {key: merged(old.get(key), part) for key, part in patch.items() if part is not None}
    return {key: part for key, part in old.items() if key not in patch} | changed


def expired() -> Object:
    return status(410, "too old resource version: 1 (2)")


def event(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode()


def bookmark(kind: str, version: str) -> bytes:
    """A bookmark like the real API server's: Go also serializes the empty fields."""
    spec = {"containers": None} if kind == "Pod" else {}
    metadata = {"resourceVersion": version}
    return event("BOOKMARK", {"kind": kind, "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": {}})


Responder = Callable[["Connection"], None]


def body(content: Object | bytes, code: int = 200, **headers: str) -> Responder:
    """A complete response."""
    return lambda connection: connection.answer(code, content, **headers)


def error_response(error: Object) -> Responder:
    return body(error, error["code"])


def stream(*lines: bytes, end: str | None = CLEAN, then: Callable[[], Any] = lambda: None) -> Responder:
    """A watch response with these lines. It calls `then` before the end. With `end=None` it stays open and silent."""

    def answer(connection: "Connection") -> None:
        connection.begin()
        for line in lines:
            connection.chunk(line + b"\n")
        then()
        if end is None:
            connection.server.api.closing.wait()
        connection.end(cut=end is not CLEAN)

    return answer


def no_response(connection: "Connection") -> None:
    """Accept the request and send no response."""
    connection.server.api.closing.wait()
    connection.end(cut=True)


def _namespace_of(request: ReceivedRequest) -> str:
    return request.path.split("/namespaces/")[1].split("/")[0] if "/namespaces/" in request.path else ""


def _is_selected(item: Object, request: ReceivedRequest) -> bool:
    """Whether an item is in the request's namespace and has its labels. Only selectors like "a=b,c=d" are supported."""
    if _namespace_of(request) not in ("", item["metadata"].get("namespace", "")):
        return False
    selector = request.query.get("labelSelector", "")
    wanted = dict(part.split("=", 1) for part in selector.split(",") if selector and "(" not in selector)
    return wanted.items() <= item["metadata"].get("labels", {}).items()


class ApiServer:
    """The fake server: its objects, its faults and the requests that it received. Any thread may change them.

    `missing` holds the plurals that get a 404, like a missing CRD. `forbidden` holds the (verb, plural) pairs that get
    a 403.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[ReceivedRequest] = []
        self.missing: set[str] = set()
        self.forbidden: set[tuple[str, str]] = set()
        self.seconds_ahead = 0.0  # by which its clock differs from this machine's
        self.closing = threading.Event()
        self._objects: defaultdict[str, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._history: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self._watches: defaultdict[str, list[queue.Queue[Any]]] = defaultdict(list)
        self._scripts: defaultdict[tuple[str, str], deque[Responder]] = defaultdict(deque)
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self._version = 1000
        self._page_numbers = itertools.count(1)
        self._lock = threading.RLock()
        self.http = HttpServer(self, tls)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.http.server_port}"
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), name="api-server")

    def __enter__(self) -> "ApiServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.closing.set()
        self.end_watches(CUT)
        self.http.shutdown()
        self.http.cut()
        self.http.server_close()
        self._thread.join()
        assert not self.http.handler_errors, self.http.handler_errors

    @property
    def version(self) -> str:
        return str(self._version)

    def kubeconfig(self, folder: Path, **user: Any) -> str:
        """The path of a kubeconfig for this server; `user` holds the credentials."""
        sections = {
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x"} | sections))
        return str(file)

    def put(self, *items: Object) -> None:
        """Create or update objects. A finished pod is deleted, because the webhook's field selector excludes it."""
        for item in items:
            with self._lock:
                plural = PLURALS[item["kind"]]
                exists = key_of(item) in self._objects[plural]
                if item["kind"] == "Pod" and text(item, "status", "phase") in FINISHED:
                    self.delete(item)
                else:
                    self._objects[plural][key_of(item)] = self._record("MODIFIED" if exists else "ADDED", item)

    def delete(self, *items: Object) -> None:
        for item in items:
            with self._lock:
                self._record("DELETED", item)
                del self._objects[PLURALS[item["kind"]]][key_of(item)]

    def stored(self, plural: str, key: tuple[str, str]) -> Object:
        return deepcopy(self._objects[plural][key])

    def end_watches(self, how: str = CLEAN) -> None:
        with self._lock:
            for plural in list(self._watches):
                self._send(plural, how)

    def script(self, verb: str, plural: str, *answers: Responder) -> None:
        """Give each of the next requests with this verb and plural one of these responses."""
        self._scripts[verb, plural] += answers

    def count(self, verb: str, plural: str) -> int:
        return sum((request.verb, request.plural) == (verb, plural) for request in self.requests)

    def last(self, verb: str, plural: str) -> ReceivedRequest:
        return next(request for request in reversed(self.requests) if (request.verb, request.plural) == (verb, plural))

    def _record(self, kind: str, item: Object) -> Object:
        self._version += 1
        stored = deepcopy(item)
        stored["metadata"]["resourceVersion"] = self.version
        plural, line = PLURALS[item["kind"]], event(kind, stored)
        self._history[plural].append((self._version, line))
        self._send(plural, line)
        return stored

    def _send(self, plural: str, message: Any) -> None:
        for watch in self._watches[plural]:
            watch.put(message)

    def respond(self, request: ReceivedRequest, connection: "Connection") -> None:
        self.requests.append(request)
        script = self._scripts[request.verb, request.plural]
        if script:
            script.popleft()(connection)
        elif request.plural in self.missing:
            connection.answer(404, b"404 page not found\n", **{"Content-Type": "text/plain"})
        elif (request.verb, request.plural) in self.forbidden:
            connection.answer(403, forbidden(request.verb, request.plural))
        elif request.plural in {"subjectaccessreviews", "selfsubjectaccessreviews"}:
            asked = request.body["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"]) not in self.forbidden
            connection.answer(201, request.body | {"status": {"allowed": allowed}})
        else:
            verbs: dict[str, Callable[..., Any]] = {"list": self._list, "watch": self._watch, "post": self._create}
            verbs |= {"put": self._update, "patch": self._update, "delete": self._delete}
            verbs.get(request.verb, self._find)(request, connection)

    def _find(self, request: ReceivedRequest, connection: "Connection") -> Object | None:
        """Find the object of a path. Answers a read, or that the object doesn't exist."""
        name = unquote(request.path.rpartition("/")[2])
        namespace = "" if request.plural == "namespaces" else _namespace_of(request)
        item = self._objects[request.plural].get((namespace, name))
        if item is None:
            connection.answer(404, status(404, f'{request.plural} "{name}" not found'))
        elif request.verb == "get":
            connection.answer(200, item)
        return item

    def _create(self, request: ReceivedRequest, connection: "Connection") -> None:
        # The path determines the kind: a client may omit it.
        item = {"kind": KINDS[request.plural]} | deepcopy(request.body)
        item["metadata"]["namespace"] = _namespace_of(request)
        item["metadata"].setdefault("name", f"{item['metadata'].get('generateName', '')}x7k2p")
        item["metadata"]["uid"] = f"uid-of-{item['metadata']['name']}"
        if request.query.get("dryRun") == "All":
            return connection.answer(201, item)
        with self._lock:
            if key_of(item) in self._objects[request.plural]:
                return connection.answer(409, status(409, "the object exists already"))
            self.put(item)
            return connection.answer(201, self._objects[request.plural][key_of(item)])

    def _update(self, request: ReceivedRequest, connection: "Connection") -> None:
        """Replace an object, or apply a merge patch."""
        with self._lock:
            if not (item := self._find(request, connection)):
                return None
            version = request.body.get("metadata", {}).get("resourceVersion", "")
            if version not in ("", item["metadata"]["resourceVersion"]):
                return connection.answer(409, status(409, "the object has been modified"))
            self.put(request.body if request.verb == "put" else merged(item, request.body))
            return connection.answer(200, self._objects[request.plural][key_of(item)])

    def _delete(self, request: ReceivedRequest, connection: "Connection") -> None:
        with self._lock:
            if not (item := self._find(request, connection)):
                return None
            preconditions = (request.body or {}).get("preconditions", {})
            if any(item["metadata"][field] != value for field, value in preconditions.items()):
                return connection.answer(409, status(409, "Precondition failed"))
            self.delete(item)
            return connection.answer(200, item)

    def _list(self, request: ReceivedRequest, connection: "Connection") -> None:
        with self._lock:
            if token := request.query.get("continue"):
                if token not in self._pages:
                    return connection.answer(410, expired())
                version, items = self._pages[token]
            else:
                version, items = self._version, [*self._objects[request.plural].values()]
                items = [item for item in items if _is_selected(item, request)]
                if name := request.query.get("fieldSelector", "").partition("metadata.name=")[2]:
                    namespace = _namespace_of(request)
                    items = [item for item in items if key_of(item) == (namespace or key_of(item)[0], name)]
            limit = int(request.query.get("limit", len(items)))
            metadata: Object = {"resourceVersion": str(version)}
            if items[limit:]:
                metadata["continue"] = f"page-{next(self._page_numbers)}"
                self._pages[metadata["continue"]] = version, items[limit:]
        listed = [list_item(item) for item in items[:limit]]
        return connection.answer(200, {"kind": "List", "metadata": metadata, "items": listed})

    def _watch(self, request: ReceivedRequest, connection: "Connection") -> None:
        since, lines = int(request.query["resourceVersion"]), queue.Queue[Any]()
        with self._lock:
            missed = [line for version, line in self._history[request.plural] if version > since]
            self._watches[request.plural].append(lines)
            if self.closing.is_set():  # this watch began after `__exit__` ended all watches
                lines.put(CUT)
        connection.begin()
        try:
            for line in missed:
                connection.chunk(line + b"\n")
            while (line := lines.get()) not in (CLEAN, CUT):
                connection.chunk(line + b"\n")
        finally:
            with self._lock:
                self._watches[request.plural].remove(lines)
        connection.end(cut=line is CUT)


class Connection(BaseHTTPRequestHandler):
    """A client connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "HttpServer"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        _, root, *parts = url.path.split("/")
        parts = [root] if root == "version" else parts[2 if root == "apis" else 1 :]  # skip the group and version
        parts = parts[2:] if parts[0] == "namespaces" and len(parts) > 2 else parts
        reading = "get" if len(parts) > 1 else "watch" if query.get("watch") == "true" else "list"
        verb = reading if self.command == "GET" else self.command.lower()
        content = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        headers = {name.lower(): ", ".join(self.headers.get_all(name, [])) for name in self.headers}
        self.server.api.respond(ReceivedRequest(verb, parts[0], url.path, query, headers, content), self)

    do_POST = do_PATCH = do_PUT = do_DELETE = do_GET  # noqa: N815 (BaseHTTPRequestHandler requires these names)

    def answer(self, code: int, content: Object | bytes, **headers: str) -> None:
        sent = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(sent))} | headers
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string((timestamp or time.time()) + self.server.api.seconds_ahead)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def end(self, *, cut: bool) -> None:
        if cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Log nothing: `requests` records the requests."""


class HttpServer(ThreadingHTTPServer):
    """The HTTP server. It tracks its connections, so that it can close all of them."""

    daemon_threads = False  # server_close() waits for the handler threads

    def __init__(self, api: ApiServer, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.api, self.handler_errors = api, list[str]()
        self.open: set[socket.socket] = set()
        self.accepted = 0
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        self.accepted += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        """Shut down all connections."""
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # a client may disconnect at any time
            self.handler_errors.append("".join(traceback.format_exception(error)))
