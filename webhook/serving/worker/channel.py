"""A non-blocking connection without TLS: send, receive, close. `tls_channel` adds TLS."""

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from select import EPOLLIN, EPOLLOUT

READ_SIZE = 64 * 1024  # bytes of a peer per turn, because other connections wait: to parse tiny chunks of it takes 4 ms
# A value for SO_LINGER: close() sends RST, and the kernel drops the data that the peer has not read.
LINGER_ZERO = struct.pack("ii", 1, 0)


class ConnectionLost(Exception):
    """The peer closed or reset the connection, or its TLS failed. The message is the cause as a metric label.

    `rejected` is the reason why TLS rejected the peer's certificate, empty otherwise.
    """

    def __init__(self, cause: str, rejected: str = "") -> None:
        super().__init__(cause)
        self.rejected = rejected


class Channel:
    """One accepted connection without TLS. `wanted_events` are the events of epoll to wait for before the next call.

    Once `is_outdated` returns True, the peer should reconnect, because the server might not accept it any more.
    Methods that read or write raise ConnectionLost.
    """

    starts_with_handshake = False

    def __init__(self, sock: socket.socket, is_outdated: Callable[[], bool] = lambda: False) -> None:
        self.sock, self.is_outdated = sock, is_outdated
        self.wanted_events = EPOLLIN
        self.has_input = False  # whether `receive` can return more without an event of the socket
        self._unsent: bytes | memoryview = b""

    @property
    def buffered(self) -> int:
        """The bytes in memory that the peer has sent or has not read yet."""
        return len(self._unsent)

    def handshake(self) -> bool:
        """Return True: there is no handshake."""
        return True

    def receive(self) -> bytes | None:
        """Return the received bytes, b"" at the end of the stream, or None if nothing has arrived."""
        try:
            return self.sock.recv(READ_SIZE)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # between two requests this is no fault; inside one, the response fails
            return b""
        except OSError:
            raise ConnectionLost("reset") from None

    def send(self, data: bytes, *, last: bool = False) -> bool:  # noqa: ARG002 (for TLS)
        """Append `data` to the unsent bytes, send, and return whether all bytes are sent."""
        self._unsent = memoryview(bytes(self._unsent) + data if self._unsent else data)
        return self._flush()

    def half_close(self) -> None:
        """Close the sending side. The peer can still read all sent bytes."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

    def reset(self) -> None:
        """Close the socket with RST and drop the bytes that the peer has not read."""
        with suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self.close()

    def _flush(self) -> bool:
        """Send the unsent bytes, and return whether all are sent. If not, wait until the socket is writable."""
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent)
            except BlockingIOError:
                self.wanted_events = EPOLLOUT
                return False
            except OSError:
                raise ConnectionLost("reset") from None
            self._unsent = self._unsent[sent:]
        self.wanted_events = EPOLLIN
        return True
