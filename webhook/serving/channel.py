"""A TLS socket that never blocks."""

import errno
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE
from typing import TypeVar

T = TypeVar("T")

RECORD = 64 * 1024  # bytes; a record of TLS holds 16 KiB, and one is what a read returns
# With this a close is a reset, and the kernel keeps nothing for a peer that does not read.
RESET = struct.pack("ii", 1, 0)


class ConnectionLost(Exception):
    """The peer has gone, or speaks no TLS that we could follow. Its text is the cause, in one word."""


class OutOfDescriptors(Exception):
    """No file descriptor, or no memory, is left for another connection."""


def accept(listener: socket.socket, context: Callable[[], ssl.SSLContext | None]) -> tuple["Channel", str] | None:
    """Take in one new connection, with its peer's address; None where nobody waits. Raises Gone and Full."""
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
        sock.getpeername()  # wrap_socket asks as well, and leaves a socket open where the peer has gone already
        if (secured := context()) is None:
            raise ssl.SSLError("there is no certificate yet")
        return Channel(secured.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)), str(address[0])
    except OSError as error:
        sock.close()
        raise ConnectionLost("tls" if isinstance(error, ssl.SSLError) else "reset") from None


class Channel:
    """One accepted connection, seen as bytes. `wants` is what the selector is to look for before the next try."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock = sock
        self.wants = EVENT_READ
        self._out = memoryview(b"")

    def handshake(self) -> bool:
        """Go on with the handshake, and say whether it is done. Raises Gone."""
        return self._tried(self._shaken) is not None

    def receive(self) -> bytes | None:
        """Return what has come, nothing at the end, None where nothing has come yet. Raises Gone."""
        return self._tried(lambda: self.sock.recv(RECORD))

    def send(self, data: bytes) -> bool:
        """Send this after what is still to be sent, and say whether all is out. Raises Gone."""
        self._out = memoryview(bytes(self._out) + data if self._out else data)
        while self._out:
            sent = self._tried(lambda: self.sock.send(self._out))
            if sent is None:
                return False
            self._out = self._out[sent:]
        self.wants = EVENT_READ
        return True

    def half_close(self) -> None:
        """Tell the peer that no more comes from us; it may still read all that was sent."""
        with suppress(OSError, ValueError):
            self.sock.unwrap()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close at once."""
        with suppress(OSError):
            self.sock.close()

    def reset(self) -> None:
        """Close at once, and forget what the peer has not taken."""
        with suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.close()

    def _shaken(self) -> bool:
        self.sock.do_handshake()
        return True

    def _tried(self, act: Callable[[], T]) -> T | None:
        try:
            return act()
        except (ssl.SSLWantReadError, BlockingIOError):  # the latter once TLS has ended
            self.wants = EVENT_READ
        except ssl.SSLWantWriteError:
            self.wants = EVENT_WRITE
        except ssl.SSLEOFError:  # nothing was wrong with its TLS
            raise ConnectionLost("reset") from None
        except ssl.SSLError:
            raise ConnectionLost("tls") from None
        except OSError:
            raise ConnectionLost("reset") from None
        return None
