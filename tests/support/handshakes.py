"""Measures the CPU time of the costliest turn of a TLS handshake, in a TlsChannel of this process."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from webhook.serving.worker.channel import ConnectionLost
from webhook.serving.worker.tls_channel import TlsChannel

MAX_TURNS = 2000  # of one handshake


@contextmanager
def _channel(context: ssl.SSLContext) -> Iterator[tuple[TlsChannel, socket.socket]]:
    """Open a channel; yield it and its peer's socket. Neither blocks."""
    ours, peer = socket.socketpair()
    with ours, peer:
        for sock in ours, peer:
            sock.setblocking(False)
        yield TlsChannel(ours, context, lambda: False), peer


def _costliest(channel: TlsChannel, act: Callable[[], bool]) -> float:
    """Return the milliseconds of the costliest turn. `act` is what the peer does before each; False ends it."""
    worst = 0.0
    for _ in range(MAX_TURNS):
        continues, is_over = act(), False
        begin = time.thread_time()
        try:
            is_over = channel.handshake()
        except ConnectionLost:
            is_over = True
        worst = max(worst, 1000 * (time.thread_time() - begin))
        if is_over or not (continues or channel.has_input):
            break
    return worst


def costliest_turn(context: ssl.SSLContext, data: bytes) -> float:
    """Return the milliseconds of the costliest turn while a peer sends this data."""
    with _channel(context) as (channel, peer):
        unsent = memoryview(data)

        def send() -> bool:
            nonlocal unsent
            with suppress(BlockingIOError):
                unsent = unsent[peer.send(unsent) :]
            return bool(unsent)

        return _costliest(channel, send)


def costliest_turn_of_client(context: ssl.SSLContext, certificate: Path, key: Path) -> float:
    """Return the milliseconds of the costliest turn while a client with a certificate chain connects."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.load_cert_chain(certificate, key)
    with _channel(context) as (channel, peer), client.wrap_socket(peer, do_handshake_on_connect=False) as tls:

        def connect() -> bool:
            with suppress(OSError):  # also where TLS waits for the server
                tls.do_handshake()
            return True

        return _costliest(channel, connect)
