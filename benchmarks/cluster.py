"""A fake API server for the other benchmarks: serves the lists and watches of a cluster, and accepts Events.

This module measures nothing: run as a script without a file, it prints nothing.
"""

import ssl
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import msgspec

# As measured on an API server of 1.36: a quiet watch gets a bookmark once a minute. Storing a pod takes 8 to 16 ms
# (docs/development/measurements.md), storing an Event somewhat less.
BOOKMARK_EVERY, STORING = 60.0, 0.005  # seconds


class Handler(BaseHTTPRequestHandler):
    """Serves one connection. `items` are the objects of each plural, as JSON."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    items: Mapping[str, Sequence[bytes]]

    def do_GET(self) -> None:
        """Serve a list or a watch."""
        url = urlsplit(self.path)
        query, plural = dict(parse_qsl(url.query)), url.path.rpartition("/")[2]
        if not query.get("watch"):
            return self._list(self.items.get(plural, ()), int(query.get("continue", 0)), int(query.get("limit", 10**9)))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.watch(plural, float(query.get("timeoutSeconds", 300)))
        self.wfile.write(b"0\r\n\r\n")
        return None

    def do_POST(self) -> None:
        """Respond to an Event with the same object, and store nothing."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(STORING)
        self._answer(body)

    do_PATCH = do_POST  # noqa: N815 (the name that http.server calls)

    def _list(self, items: Sequence[bytes], start: int, limit: int) -> None:
        end = min(start + limit, len(items))
        more = b'"continue":"%d",' % end if end < len(items) else b""
        self._answer(b'{"metadata":{%b"resourceVersion":"1"},"items":[%b]}' % (more, b",".join(items[start:end])))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def watch(self, _plural: str, seconds: float) -> None:
        """Send only bookmarks, because nothing changes in this cluster."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            threading.Event().wait(min(BOOKMARK_EVERY, left))
            self.send_event(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}\n')

    def send_event(self, line: bytes) -> None:
        """Send one event of a watch."""
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))

    def log_message(self, *_: object) -> None:
        """Discard the access log."""


def serve(items: Mapping[str, Sequence[bytes]], handler: type[Handler] = Handler, tls: Path | None = None) -> None:
    """Serve a cluster until killed, and print the address. `tls` is the folder of a certificate."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Serving", (handler,), {"items": items}))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # ignores closed connections
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(f"127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


class Typed(msgspec.Struct):
    """An object, of which only the kind is read."""

    kind: str


class List(msgspec.Struct):
    """A List in JSON."""

    items: list[msgspec.Raw]


def read_snapshot(file: Path) -> Mapping[str, Sequence[bytes]]:
    """Return the objects of a List in JSON, by plural."""
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for item in msgspec.json.decode(file.read_bytes(), type=List).items:
        kind = msgspec.json.decode(item, type=Typed).kind.lower()
        found[f"{kind}{'es' if kind.endswith('s') else 's'}"].append(bytes(item))
    return found


if __name__ == "__main__" and len(sys.argv) > 1:
    serve(read_snapshot(Path(sys.argv[1])), tls=Path(sys.argv[2]))
