"""A non-blocking TLS connection. TLS runs over buffers in memory, and gets one record of the peer at a time.

A socket of the `ssl` module would read on until it finds application data. A peer that sends only KeyUpdate records
(RFC 8446, 4.6.3) then holds the event loop: 5 MB of them took 5 s.
"""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE
from typing import TypeVar

from webhook.serving.http.channel import Channel, ClientCertificateRejected, ConnectionLost

T = TypeVar("T")

HEADER_SIZE = 5  # bytes of a record: content type, version, length
CONTENT_TYPES = range(20, 25)
MAX_PLAINTEXT = 16 * 1024  # bytes of one record
MAX_RECORD = HEADER_SIZE + MAX_PLAINTEXT + 2048  # bytes; TLS 1.2 allows more expansion than 1.3
# Records without application data that a peer may send per request: KeyUpdates, warnings, empty records. Go's limit,
# crypto/tls/common.go (maxUselessRecords), counts only consecutive ones.
MAX_USELESS_RECORDS = 16
HANDSHAKE_RECORDS_PER_TURN = 8  # a client's second flight has 3, with a certificate 5
SENT_RECORDS_PER_TURN = 16  # 256 KiB, which take 1 ms; a response has 2 KiB


def tls_opener(
    get_context: Callable[[], ssl.SSLContext | None], trusted_cas: Callable[[], str] = str
) -> Callable[[socket.socket], Channel]:
    """Return a function that opens a channel with the current TLS context; it raises SSLError if there is none.

    A channel is outdated as soon as `trusted_cas`, the CAs of clients, has changed since it was opened.
    """

    def open_channel(sock: socket.socket) -> Channel:
        # Before the context: if the CAs change in between, the channel is outdated too early, but never too late.
        accepted_by = trusted_cas()
        if (context := get_context()) is None:
            raise ssl.SSLError("no certificate yet")
        return TlsChannel(sock, context, lambda: trusted_cas() != accepted_by)

    return open_channel


class TlsChannel(Channel):
    """One accepted TLS connection."""

    starts_with_handshake = True

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, is_outdated: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(sock)
        self._is_outdated = is_outdated
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._received = bytearray()  # ciphertext that TLS has not read yet
        self._plaintext = memoryview(b"")  # of responses, not encrypted yet
        self._useless_records = 0
        self._half_closed = False

    @property
    def buffered(self) -> int:
        """The bytes in memory that the peer has sent or has not read yet."""
        return len(self._received) + len(self._unsent) + len(self._plaintext)

    @property
    def has_input(self) -> bool:
        """Whether a complete record is in memory."""
        return self._record_size() > 0

    @property
    def outdated(self) -> bool:
        """Whether the CAs of clients have changed since this client was accepted."""
        return self._is_outdated()

    def handshake(self) -> bool:
        """Continue the handshake and return whether it is complete."""
        if not self.has_input and not self._fill():
            raise ConnectionLost("reset")
        for _ in range(HANDSHAKE_RECORDS_PER_TURN):
            if not self._pass_record():
                return False
            done = self._run(self._do_handshake)
            self._flush_while_reading()
            if done is not None:
                return True
        return False

    def receive(self) -> bytes | None:
        """Return the data of one record, b"" at the end of the stream, or None if no data has arrived."""
        if self._half_closed:  # the caller discards the data, so don't decrypt it
            return self._receive_from_socket()
        if self._unsent:
            self._flush_while_reading()
        if not self.has_input and not self._fill():
            return b""
        if not self._pass_record():
            return None
        data = self._run(self._read)
        if self._outgoing.pending:
            self._flush_while_reading()
        if data is None:
            self._useless_records += 1
            if self._useless_records > MAX_USELESS_RECORDS:
                raise ConnectionLost("tls")
        return data

    def send(self, data: bytes) -> bool:
        """Append `data` to the unsent bytes, send, and return whether all bytes are sent."""
        self._plaintext = memoryview(bytes(self._plaintext) + data if self._plaintext else data)
        self.wanted_events = EVENT_WRITE
        for _ in range(SENT_RECORDS_PER_TURN):
            if not self._flush():
                return False
            if not self._plaintext:
                self._useless_records, self.wanted_events = 0, EVENT_READ
                return True
            written = self._tls.write(self._plaintext[:MAX_PLAINTEXT])
            self._plaintext = self._plaintext[written:]
        return False

    def half_close(self) -> None:
        """Send close_notify and close the sending side. The peer can still read all sent bytes."""
        self._half_closed = True
        self._received.clear()
        with suppress(OSError, ValueError, ConnectionLost):
            with suppress(ssl.SSLWantReadError):  # close_notify is written; don't wait for the peer's
                self._tls.unwrap()
            self._flush()
        super().half_close()

    def _do_handshake(self) -> bool:
        self._tls.do_handshake()
        return True

    def _read(self) -> bytes:
        return self._tls.read(MAX_PLAINTEXT)

    def _run(self, operation: Callable[[], T]) -> T | None:
        """Run an operation that reads records. Return None if it needs another record."""
        try:
            return operation()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            self._flush()  # the alert
            raise _loss(error) from None

    def _fill(self) -> bool:
        """Read what has arrived, and return False at the end of the stream."""
        data = self._receive_from_socket()
        if data:
            self._received += data
        return data != b""

    def _pass_record(self) -> bool:
        """Pass the next complete record to TLS, and return whether there was one."""
        size = self._record_size()
        if not size:
            return False
        self._incoming.write(self._received[:size])
        del self._received[:size]
        return True

    def _record_size(self) -> int:
        """Return the size of the next record with its header, 0 if it is incomplete.

        Of anything but a record, all bytes count, for TLS to reject.
        """
        received = self._received
        if len(received) < HEADER_SIZE:
            return 0
        size = HEADER_SIZE + (received[3] << 8 | received[4])
        if received[0] not in CONTENT_TYPES or received[1] != 3 or size > MAX_RECORD:
            return len(received)
        return size if size <= len(received) else 0

    def _flush(self) -> bool:
        if self._outgoing.pending:
            self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
        return super()._flush()


def _loss(error: ssl.SSLError) -> ConnectionLost:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ClientCertificateRejected(error.verify_message)
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return ClientCertificateRejected("no certificate was sent")
    return ConnectionLost("tls")
