"""Drives the event loop turn by turn in this process, with a fake clock and real client sockets."""

import socket
import ssl
from collections import Counter
from contextlib import closing, contextmanager
from http import HTTPStatus

from certs.files import Folder
from certs.secret import CA
from certs.serving import load_context
from tests.support.tls_client import read_available
from webhook.serving.worker.connection import RequestHandler
from webhook.serving.worker.loop import Loop
from webhook.serving.worker.messages import Response
from webhook.serving.worker.tls_channel import tls_opener

OK = Response(HTTPStatus.OK, b"{}")
POST = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
MAX_TURNS = 200  # many times more than any test needs


class LoopDriver:
    """An event loop with a fake request handler that records its requests.

    `/bug` raises; other requests get `response`. `on_turn` is called in each turn and may change `now`.
    """

    def __init__(self, folder):
        self.now, self.turns, self.response, self.on_turn = 1000.0, 0, OK, lambda: None
        self.statuses, self.requests = Counter(), []
        self.server_context = load_context(Folder(folder).pair(), "the test")
        self.client_context = ssl.create_default_context(cafile=folder / CA)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.address = self.listener.getsockname()
        self.handler = RequestHandler(self._respond, self._count)
        open_channel = tls_opener(lambda: self.server_context)
        self.loop = Loop(self.listener, open_channel, self.handler, self._on_turn, lambda: self.now)

    def _on_turn(self):
        self.turns += 1
        self.on_turn()

    def _respond(self, request):
        self.requests.append(request)
        if request.head.path == "/bug":
            raise LookupError("a bug")
        return self.response

    def _count(self, status):
        self.statuses[int(status)] += 1

    # --- the event loop ---

    def turn(self, times=1):
        """Run turns without blocking in the poll."""
        for _ in range(times):
            self.loop._wake()
            self.loop.run_once()

    def advance_clock(self, seconds):
        """Advance the clock and run one turn, which applies the time limits."""
        self.now += seconds
        self.turn()

    def run_until_drained(self, *, step=0.1):
        """Run until drained, advancing the clock by `step` seconds per turn. Return the seconds that elapsed."""
        started, previous = self.now, self.on_turn

        def advance():
            self.now += step
            self.loop._wake()  # so that no poll blocks
            previous()

        self.on_turn = advance
        self.loop.run()
        return self.now - started

    @property
    def dropped(self):
        """The number of dropped connections by cause, without zeros."""
        return {cause: count for cause, count in self.loop.dropped.items() if count}

    # --- clients ---

    def connect_unaccepted(self, peer="127.0.0.1"):
        """A TCP connection in the backlog, not yet accepted, from this address."""
        sock = socket.create_connection(self.address, source_address=(peer, 0))
        sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # otherwise the second segment waits for an ACK of the first
        sock.setblocking(False)
        return sock

    def connect_tcp(self, **options):
        """An accepted TCP connection that has not started TLS."""
        sock = self.connect_unaccepted(**options)
        self.turn()
        return sock

    def connect_tls(self, peer="127.0.0.1", **options):
        """A TLS connection after its handshake."""
        context = options.pop("context", self.client_context)
        sock = context.wrap_socket(
            self.connect_tcp(peer=peer), server_hostname="127.0.0.1", do_handshake_on_connect=False, **options
        )
        for _ in range(MAX_TURNS):
            try:
                sock.do_handshake()
            except ssl.SSLWantReadError:
                self.turn()
            else:
                self.turn()
                return sock
        raise AssertionError("handshake not completed")

    def send(self, sock, data):
        """Send all data, running turns while the socket buffer is full."""
        rest = memoryview(data)
        for _ in range(MAX_TURNS * 100):
            if not rest:
                return self.turn()
            try:
                rest = rest[sock.send(rest) :]
            except (ssl.SSLWantWriteError, BlockingIOError):
                self.turn()
        raise AssertionError("the loop does not read")

    def receive(self, sock, turns=3):
        """Run turns, and return the bytes that the client received."""
        parts = [read_available(sock)]
        for _ in range(turns):
            self.turn()
            parts.append(read_available(sock))
        return b"".join(parts)

    def send_and_receive(self, sock, data=POST):
        """Send data and return the bytes of the response."""
        self.send(sock, data)
        return self.receive(sock)


@contextmanager
def drive_loop(folder):
    """Yield a driver whose loop listens until the end of the block."""
    driver = LoopDriver(folder)
    with closing(driver.listener):
        try:
            yield driver
        finally:
            if driver.listener.fileno() >= 0:
                driver.loop.drain()
                driver.loop.drain()
                driver.run_until_drained()
