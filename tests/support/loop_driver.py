"""The loop in this process, turned by hand on a clock that is moved by hand, and real peers."""

import socket
import ssl
import struct
from collections import Counter
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from selectors import EVENT_WRITE
from threading import Event

from certs.authority import issue_ca, issue_leaf
from certs.serving import CA, CERTIFICATE, KEY, load_context
from webhook.serving.connection import RequestHandler
from webhook.serving.exchange import Response
from webhook.serving.loop import Loop

OK = Response(HTTPStatus.OK, b"{}")
POST = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
SLOW = POST.replace(b"/mutate", b"/slow")
ENOUGH = 200  # turns, many times what anything here takes


def write_pair(folder, ca=None):
    """A folder with a certificate, its key, and its CA."""
    folder.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    ca = ca or issue_ca(now)
    leaf = issue_leaf(ca, ["localhost", "127.0.0.1"], now)
    for name, content in ((CA, ca.certificate), (CERTIFICATE, leaf.certificate), (KEY, leaf.key)):
        (folder / name).write_bytes(content)
    return folder


class Turned:
    """A loop and what became of its requests.

    `/slow` goes to a thread, which waits for `let_go` and answers with the query; `/fails` raises there, `/bug`
    on the loop. `answer` is what all others get at once. `each_turn` is called in each turn, and may move `now`.
    """

    def __init__(self, folder):
        self.now, self.turns, self.answer, self.each_turn = 1000.0, 0, OK, lambda: None
        self.slow, self.let_go, self.statuses, self.asked = [], Event(), Counter(), []
        self.context = load_context(folder)
        self.trusting = ssl.create_default_context(cafile=folder / CA)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.address = self.listener.getsockname()
        answering = RequestHandler(self._at_once, self._in_thread, self._count)
        self.loop = Loop(self.listener, lambda: self.context, answering, self._turned, lambda: self.now)

    def _turned(self):
        self.turns += 1
        self.each_turn()

    def _at_once(self, request):
        self.asked.append(request)
        if request.path in ("/slow", "/fails"):
            return None
        if request.path == "/bug":
            raise LookupError("a bug")
        return self.answer

    def _in_thread(self, request, _peer):
        if request.path == "/fails":
            raise LookupError("a bug")
        self.slow.append(request)
        assert self.let_go.wait(20)
        return Response(HTTPStatus.OK, request.query.encode() or OK.body)

    def _count(self, status):
        self.statuses[int(status)] += 1

    # --- the loop ---

    def turn(self, times=1):
        """Turn without waiting for anything."""
        for _ in range(times):
            self.loop._ring()
            self.loop.run_once()

    def pass_by(self, seconds):
        """Let time pass, and turn for what is due by then."""
        self.now += seconds
        self.turn()

    def until(self, holds):
        """Turn until something holds; a turn waits for whatever comes next."""
        for _ in range(ENOUGH):
            if holds():
                return
            self.loop.run_once()
        raise AssertionError("in vain")

    def run(self, *, second=0.1):
        """Run until drained, `second` seconds a turn, and return how many seconds that took."""
        then, own = self.now, self.each_turn

        def each_turn():
            self.now += second
            own()

        self.each_turn = each_turn
        ready, other = socket.socketpair()
        with ready, other:  # always ready to be written to, so that no turn waits
            self.loop._selector.register(ready, EVENT_WRITE, lambda: None)
            self.loop.run()
        return self.now - then

    @property
    def dropped(self):
        """What was dropped, by cause."""
        return {cause: count for cause, count in self.loop.dropped.items() if count}

    # --- peers ---

    def plain_outside(self):
        """A connection that waits to be taken in."""
        sock = socket.create_connection(self.address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a second piece waits for the first one's ACK
        sock.setblocking(False)
        return sock

    def plain(self):
        """A connection that is taken in, and has not begun with TLS."""
        sock = self.plain_outside()
        self.turn()
        return sock

    def peer(self, **options):
        """A peer whose handshake is done."""
        context = options.pop("context", self.trusting)
        sock = context.wrap_socket(self.plain(), server_hostname="127.0.0.1", do_handshake_on_connect=False, **options)
        for _ in range(ENOUGH):
            try:
                sock.do_handshake()
            except ssl.SSLWantReadError:
                self.turn()
            else:
                self.turn()
                return sock
        raise AssertionError("no handshake")

    def send(self, sock, data):
        """Send all of it, turning while there is no room."""
        rest = memoryview(data)
        for _ in range(ENOUGH * 100):
            if not rest:
                return self.turn()
            try:
                rest = rest[sock.send(rest) :]
            except (ssl.SSLWantWriteError, BlockingIOError):
                self.turn()
        raise AssertionError("nobody takes it")

    def got(self, sock, turns=3):
        """What a peer has received within some turns."""
        parts = [taken(sock)]
        for _ in range(turns):
            self.turn()
            parts.append(taken(sock))
        return b"".join(parts)

    def ask(self, sock, data=POST):
        """Send and return what comes back."""
        self.send(sock, data)
        return self.got(sock)


def taken(sock):
    """What is there to be read."""
    parts = []
    with suppress(ssl.SSLWantReadError, BlockingIOError):
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


def has_ended(sock):
    """Whether the other side has ended the connection, one way or the other."""
    try:
        while sock.recv(65536):
            pass
    except (ssl.SSLWantReadError, BlockingIOError):
        return False
    except OSError:
        pass
    return True


def reset(sock):
    """Close with a RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def hello(trusting):
    """The first bytes of a handshake."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        trusting.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


@contextmanager
def turning(folder):
    """A loop that listens, until the end of the block."""
    turned = Turned(folder)
    with closing(turned.listener):
        try:
            yield turned
        finally:
            turned.let_go.set()
            if turned.listener.fileno() >= 0:
                turned.loop.drain()
                turned.loop.drain()
                turned.run()
