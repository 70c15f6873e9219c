"""An API server in a thread, as far as lists and watches go. It refuses and fails on demand.

It answers as the real one does (seen on 1.36): lists in pages, chunked watches from a resource version, bookmarks, a
Status for a refusal, plain text for a path that it does not know. `script` puts another answer in the place of the next
ones, be it as broken as you like.
"""

import itertools
import json
import queue
import socket
import ssl
import sys
import threading
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

PLURALS = {
    "Node": "nodes",
    "PersistentVolume": "persistentvolumes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "ShareManager": "sharemanagers",
}
WHO = "system:serviceaccount:kubevirt-scheduler:kubevirt-scheduler"
FINISHED = ("Succeeded", "Failed")
CLEAN, CUT = "the server ends it", "the connection breaks"


@dataclass(frozen=True)
class Asked:
    """A request: `verb` is get, list or watch, or the method of a write."""

    verb: str
    plural: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


def key_of(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def status(code: int, message: str, reason: str = "") -> Object:
    """What the API server says when it refuses."""
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code} | (
        {"reason": reason} if reason else {}
    )


def forbidden(verb: str, plural: str) -> Object:
    sentence = (
        f'{plural} is forbidden: User "{WHO}" cannot {verb} resource "{plural}" in API group "" at the cluster scope'
    )
    return status(403, sentence, "Forbidden")


def expired() -> Object:
    return status(410, "too old resource version: 1 (2)", "Expired")


def event(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode()


def bookmark(kind: str, version: str) -> bytes:
    """As the real one writes it: with all that Go can't leave out."""
    item: Object = {
        "kind": kind,
        "apiVersion": "v1",
        "metadata": {"resourceVersion": version},
        "spec": {},
        "status": {},
    }
    if kind == "Pod":
        item["spec"] = {"containers": None}
    return event("BOOKMARK", item)


Answer = Callable[["Connection"], None]


def body(content: Object | bytes, code: int = 200, **headers: str) -> Answer:
    """An answer that is there at once."""
    return lambda connection: connection.answer(code, content, **headers)


def refusal(what: Object) -> Answer:
    return body(what, what["code"])


def stream(*lines: bytes, end: str | None = CLEAN, then: Callable[[], Any] = lambda: None) -> Answer:
    """A watch of these lines. `then` is called before it ends; `end=None` never does, and says nothing more."""

    def answer(connection: "Connection") -> None:
        connection.begin()
        for line in lines:
            connection.chunk(line + b"\n")
        then()
        if end is None:
            connection.server.api.closing.wait()
        connection.end(cut=end is not CLEAN)

    return answer


def silence(connection: "Connection") -> None:
    """No answer at all."""
    connection.server.api.closing.wait()
    connection.end(cut=True)


def dribble(connection: "Connection") -> None:
    """An answer that comes byte by byte, and each of them in time."""
    connection.begin()
    while not connection.server.api.closing.wait(0.02):
        connection.chunk(b" ")


class ApiServer:
    """What it knows and how it behaves; any thread may change that."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.missing: set[str] = set()
        self.forbidden: set[tuple[str, str]] = set()
        self.tokens: set[str] | None = None
        self.closing = threading.Event()
        self._objects: defaultdict[str, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._history: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self._watches: defaultdict[str, list[queue.Queue[Any]]] = defaultdict(list)
        self._scripts: defaultdict[tuple[str, str], deque[Answer]] = defaultdict(deque)
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self._version, self._oldest = 1000, 0
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._http = Http(self, tls)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="api-server")

    def __enter__(self) -> "ApiServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.end_watches(CUT)
        self._http.shutdown()
        self._http.cut()
        self._http.server_close()
        self._thread.join()
        assert not self._http.surprises, self._http.surprises

    @property
    def version(self) -> str:
        return str(self._version)

    def kubeconfig(self, folder: Path, **user: Any) -> str:
        """A kubeconfig for this server; `user` is how it proves who it is."""
        named = {
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x"} | named))
        return str(file)

    def put(self, *items: Object) -> None:
        """Create these objects, or change those that are there; a pod that has finished is gone for us."""
        for item in items:
            with self._lock:
                plural = PLURALS[item["kind"]]
                known = key_of(item) in self._objects[plural]
                if item.get("status", {}).get("phase") in FINISHED:  # the field selector ends there
                    self.delete(item)
                else:
                    self._objects[plural][key_of(item)] = self._record("MODIFIED" if known else "ADDED", item)

    def delete(self, *items: Object) -> None:
        for item in items:
            with self._lock:
                self._record("DELETED", item)
                del self._objects[PLURALS[item["kind"]]][key_of(item)]

    def bookmark(self, kind: str) -> None:
        """Tell the watches of a kind how far they have come, though nothing has happened to it."""
        with self._lock:
            self._version += 1
            self._send(PLURALS[kind], bookmark(kind, self.version))

    def compact(self) -> None:
        """Forget the history: a watch from an older version than the newest gets 410."""
        with self._lock:
            self._oldest = self._version
            self._history.clear()
            self._pages.clear()

    def end_watches(self, how: str = CLEAN) -> None:
        with self._lock:
            for plural in list(self._watches):
                self._send(plural, how)

    def script(self, verb: str, plural: str, *answers: Answer) -> None:
        """Give the next requests of this kind these answers, one each."""
        self._scripts[verb, plural] += answers

    def count(self, verb: str, plural: str) -> int:
        """How often something was asked for."""
        return sum((asked.verb, asked.plural) == (verb, plural) for asked in self.asked)

    def last(self, verb: str, plural: str) -> Asked:
        return next(asked for asked in reversed(self.asked) if (asked.verb, asked.plural) == (verb, plural))

    @property
    def watching(self) -> int:
        """How many watches are open."""
        return sum(map(len, self._watches.values()))

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._http.open)

    @property
    def accepted(self) -> int:
        """How many connections there have been."""
        return self._http.accepted

    def _record(self, kind: str, item: Object) -> Object:
        self._version += 1
        kept = deepcopy(item)
        kept["metadata"]["resourceVersion"] = self.version
        plural, line = PLURALS[item["kind"]], event(kind, kept)
        self._history[plural].append((self._version, line))
        self._send(plural, line)
        return kept

    def _send(self, plural: str, what: Any) -> None:
        for watch in self._watches[plural]:
            watch.put(what)

    def respond(self, asked: Asked, connection: "Connection") -> None:
        self.asked.append(asked)
        script = self._scripts[asked.verb, asked.plural]
        token = asked.headers.get("authorization", "")
        if script:
            script.popleft()(connection)
        elif self.tokens is not None and token.lower().removeprefix("bearer ") not in self.tokens:
            connection.answer(401, status(401, "Unauthorized", "Unauthorized"))
        elif asked.plural in self.missing:
            connection.answer(404, b"404 page not found\n", **{"Content-Type": "text/plain"})
        elif (asked.verb, asked.plural) in self.forbidden:
            connection.answer(403, forbidden(asked.verb, asked.plural))
        else:
            {"list": self._list, "watch": self._watch}.get(asked.verb, self._get)(asked, connection)

    def _get(self, asked: Asked, connection: "Connection") -> None:
        name = unquote(asked.path.rpartition("/")[2])
        namespace = asked.path.split("/namespaces/")[1].split("/")[0] if "/namespaces/" in asked.path else ""
        item = self._objects[asked.plural].get((namespace, name))
        if item is None:
            connection.answer(404, status(404, f'{asked.plural} "{name}" not found', "NotFound"))
        else:
            connection.answer(200, item)

    def _list(self, asked: Asked, connection: "Connection") -> None:
        with self._lock:
            if token := asked.query.get("continue"):
                if token not in self._pages:
                    return connection.answer(410, expired())
                version, items = self._pages[token]
            else:
                version, items = self._version, [*self._objects[asked.plural].values()]
            limit = int(asked.query.get("limit", len(items)))
            metadata: Object = {"resourceVersion": str(version)}
            if items[limit:]:
                metadata["continue"] = f"page-{next(self._numbers)}"
                self._pages[metadata["continue"]] = version, items[limit:]
        return connection.answer(200, {"kind": "List", "metadata": metadata, "items": items[:limit]})

    def _watch(self, asked: Asked, connection: "Connection") -> None:
        since, ours = int(asked.query["resourceVersion"]), queue.Queue[Any]()
        with self._lock:
            missed = [line for version, line in self._history[asked.plural] if version > since]
            self._watches[asked.plural].append(ours)
        connection.begin()
        if since < self._oldest:
            missed = [event("ERROR", expired())]
            ours.put(CLEAN)
        try:
            for line in missed:
                connection.chunk(line + b"\n")
            while (line := ours.get()) not in (CLEAN, CUT):
                connection.chunk(line + b"\n")
        finally:
            with self._lock:
                self._watches[asked.plural].remove(ours)
        connection.end(cut=line is CUT)


class Connection(BaseHTTPRequestHandler):
    """One client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "Http"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        _, root, *parts = url.path.split("/")
        parts = parts[2:] if root == "apis" else parts[1:]  # without group and version
        parts = parts[2:] if parts[0] == "namespaces" else parts
        reading = "get" if len(parts) > 1 else "watch" if query.get("watch") == "true" else "list"
        verb = reading if self.command == "GET" else self.command.lower()
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.api.respond(Asked(verb, parts[0], url.path, query, headers), self)

    do_POST = do_PATCH = do_GET  # noqa: N815 (the same)

    def answer(self, code: int, content: Object | bytes, **headers: str) -> None:
        sent = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(sent))} | headers
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)

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
        """Say nothing: whoever wants to know looks at `asked`."""


class Http(ThreadingHTTPServer):
    """The listener. It knows its connections, so that none is left."""

    daemon_threads = False  # the end waits for them

    def __init__(self, api: ApiServer, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.api, self.surprises = api, list[str]()
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
        """Break all connections."""
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # a client that has gone is no surprise
            self.surprises.append("".join(traceback.format_exception(error)))
