"""A non-blocking connection without TLS: accept, send, receive, close. `tls_channel` adds TLS."""

import errno
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE

# bytes; one TLS record at most: 16 KiB of plaintext, 256 bytes of expansion, 5 bytes of header (RFC 8446, 5.2)
READ_SIZE = 16 * 1024 + 256 + 5
# A value for SO_LINGER: close() sends RST, and the kernel drops the data that the peer has not read.
LINGER_ZERO = struct.pack("ii", 1, 0)


class ConnectionLost(Exception):
    """The peer closed or reset the connection, or its TLS failed. The message is the cause as a metric label."""


class ClientCertificateRejected(ConnectionLost):
    """TLS rejected the peer's certificate, or the peer sent none. `reason` is OpenSSL's."""

    def __init__(self, reason: str) -> None:
        super().__init__("certificate")
        self.reason = reason


class OutOfDescriptors(Exception):
    """The process or the system has no file descriptor or no memory for another connection."""


class Channel:
    """One accepted connection without TLS. `wanted_events` are the selector events to wait for before the next call.

    Methods that read or write raise ConnectionLost.
    """

    starts_with_handshake = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.wanted_events = EVENT_READ
        self._unsent: bytes | memoryview = b""

    @property
    def buffered(self) -> int:
        """The bytes in memory that the peer has sent or has not read yet."""
        return len(self._unsent)

    @property
    def has_input(self) -> bool:
        """Whether `receive` can return more without an event of the socket."""
        return False

    @property
    def outdated(self) -> bool:
        """Whether the peer should reconnect, because the server might not accept it any more."""
        return False

    def handshake(self) -> bool:
        """Return True: there is no handshake."""
        return True

    def receive(self) -> bytes | None:
        """Return the received bytes, b"" at the end of the stream, or None if nothing has arrived."""
        self._flush_while_reading()
        return self._receive_from_socket()

    def send(self, data: bytes) -> bool:
        """Append `data` to the unsent bytes, send, and return whether all bytes are sent."""
        self._unsent = memoryview(bytes(self._unsent) + data if self._unsent else data)
        sent = self._flush()
        self.wanted_events = EVENT_READ if sent else EVENT_WRITE
        return sent

    def half_close(self) -> None:
        """Close the sending side. The peer can still read all sent bytes."""
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

    def _receive_from_socket(self) -> bytes | None:
        try:
            return self.sock.recv(READ_SIZE)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # between two requests this is no fault; inside one, the response fails
            return b""
        except OSError:
            raise ConnectionLost("reset") from None

    def _flush_while_reading(self) -> None:
        # Left over from `100 Continue` or from TLS itself. A peer that does not read it may still send its request.
        self.wanted_events = EVENT_READ if self._flush() else EVENT_READ | EVENT_WRITE

    def _flush(self) -> bool:
        """Send the unsent bytes, and return whether all are sent."""
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent)
            except BlockingIOError:
                return False
            except OSError:
                raise ConnectionLost("reset") from None
            self._unsent = self._unsent[sent:]
        return True


def accept(listener: socket.socket, open_channel: Callable[[socket.socket], Channel]) -> tuple[Channel, str] | None:
    """Accept one connection and return it with its peer's address, or None if the backlog is empty.

    Raises OutOfDescriptors, and ConnectionLost if the peer is gone or `open_channel` raises an SSLError.
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
        sock.getpeername()  # raises if the peer is gone
        return open_channel(sock), str(address[0])
    except OSError as error:
        sock.close()
        raise ConnectionLost("tls" if isinstance(error, ssl.SSLError) else "reset") from None
