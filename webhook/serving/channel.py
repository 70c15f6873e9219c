"""A non-blocking TLS connection: accept, handshake, send, receive, close."""

import errno
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE
from typing import TypeVar

T = TypeVar("T")

READ_SIZE = 64 * 1024  # bytes; a read returns at most one TLS record, which holds 16 KiB
# A value for SO_LINGER: close() sends RST, and the kernel drops the data that the peer has not read.
LINGER_ZERO = struct.pack("ii", 1, 0)


class ConnectionLost(Exception):
    """The peer closed or reset the connection, or its TLS failed. The message is the cause as a metric label."""


class OutOfDescriptors(Exception):
    """The process or the system has no file descriptor or no memory for another connection."""


def accept(
    listener: socket.socket, get_tls_context: Callable[[], ssl.SSLContext | None]
) -> tuple["Channel", str] | None:
    """Accept one connection and return it with its peer's address, or None if the backlog is empty.

    Raises OutOfDescriptors, and ConnectionLost if the peer is gone or there is no certificate.
    """
    try:
        sock, address = listener.accept()
    except BlockingIOError:
        return None
    except OSError as error:
        raise (
            OutOfDescriptors
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
            else ConnectionLost("reset")
        ) from None
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # wrap_socket() calls getpeername() too, but leaks the socket if the peer is gone.
        sock.getpeername()
        if (tls_context := get_tls_context()) is None:
            raise ssl.SSLError("there is no certificate yet")
        return Channel(tls_context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)), str(address[0])
    except OSError as error:
        sock.close()
        raise ConnectionLost("tls" if isinstance(error, ssl.SSLError) else "reset") from None


class Channel:
    """One accepted TLS connection. `wanted_events` are the selector events to wait for before the next call.

    Methods that read or write raise ConnectionLost.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock = sock
        self.wanted_events = EVENT_READ
        self._out = memoryview(b"")

    def handshake(self) -> bool:
        """Continue the handshake and return whether it is complete."""
        return self._try_io(self._do_handshake) is not None

    def receive(self) -> bytes | None:
        """Return the received bytes, b"" at the end of the stream, or None if nothing has arrived."""
        return self._try_io(lambda: self.sock.recv(READ_SIZE))

    def send(self, data: bytes) -> bool:
        """Append `data` to the unsent bytes, send, and return whether all bytes are sent."""
        self._out = memoryview(bytes(self._out) + data if self._out else data)
        while self._out:
            sent = self._try_io(lambda: self.sock.send(self._out))
            if sent is None:
                return False
            self._out = self._out[sent:]
        self.wanted_events = EVENT_READ
        return True

    def half_close(self) -> None:
        """Close the sending side. The peer can still read all sent bytes."""
        with suppress(OSError, ValueError):
            self.sock.unwrap()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self.sock.close()

    def reset(self) -> None:
        """Close the socket with RST and drop the bytes that the peer has not read."""
        with suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self.close()

    def _do_handshake(self) -> bool:
        self.sock.do_handshake()
        return True

    def _try_io(self, operation: Callable[[], T]) -> T | None:
        try:
            return operation()
        except (ssl.SSLWantReadError, BlockingIOError):  # BlockingIOError: after the end of TLS
            self.wanted_events = EVENT_READ
        except ssl.SSLWantWriteError:
            self.wanted_events = EVENT_WRITE
        except ssl.SSLEOFError:  # the peer closed the connection; this is no TLS error
            raise ConnectionLost("reset") from None
        except ssl.SSLError:
            raise ConnectionLost("tls") from None
        except OSError:
            raise ConnectionLost("reset") from None
        return None
