"""Raw TLS clients: what a test needs to send any bytes, and to see what the server does with them."""

import socket
import ssl
import struct
from contextlib import suppress
from datetime import UTC, datetime

from certs.secret import CA, CERTIFICATE, KEY
from tests.support.authority import issue_ca, issue_leaf


def write_certificate_files(folder, ca=None):
    """Write a certificate for localhost, its key and its CA to a folder, and return the certificate and key."""
    folder.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    ca = ca or issue_ca(now)
    leaf = issue_leaf(ca, ["localhost", "127.0.0.1"], now)
    for name, content in ((CA, ca.certificate), (KEY, leaf.key), (CERTIFICATE, leaf.certificate)):
        (folder / name).write_bytes(content)
    return leaf


def read_available(sock):
    """Return the bytes that can be read without blocking."""
    parts = []
    with suppress(ssl.SSLWantReadError, BlockingIOError):
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


def closed_by_server(sock):
    """Return whether the server closed or reset the connection."""
    try:
        while sock.recv(65536):
            pass
    except (ssl.SSLWantReadError, BlockingIOError):
        return False
    except OSError:
        pass
    return True


def reset(sock):
    """Close the socket with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def client_hello(context):
    """The bytes of a TLS ClientHello."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


def receive_all(sock):
    """All data up to the end of the stream."""
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)
