"""A non-blocking TLS connection. TLS runs over buffers in memory, and gets a few records of the peer at a time.

A socket of the `ssl` module would read on until it finds application data. A peer that sends only KeyUpdate records
(RFC 8446, 4.6.3) then holds the event loop: 5 MB of them took 5 s.

OpenSSL can't be interrupted either, so it gets at most MAX_HANDSHAKE bytes of a handshake, and no costly key share
(`client_hello`). A ClientHello of 65 KB took 54 to 90 ms, and a chain of 390 client certificates 58 to 69 ms.
"""

import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from webhook.serving.worker.channel import Channel, ConnectionLost
from webhook.serving.worker.client_hello import HEADER_SIZE, HelloInspector

unpack_header = struct.Struct(">HxH").unpack_from
CONTENT_TYPES = frozenset(content_type << 8 | 3 for content_type in range(20, 25))  # with the major version
MAX_PLAINTEXT = 16 * 1024  # bytes of one record
MAX_CIPHERTEXT = MAX_PLAINTEXT + 2048  # bytes; TLS 1.2 allows more expansion than 1.3
# Bytes of a client before its handshake is complete. A Go client sends 0.3 to 1.8 KB, and its certificates, if any.
# Those may have 230 bytes each, for which OpenSSL 3.5 takes 0.05 ms and OpenSSL 3.0 0.17 ms.
MAX_HANDSHAKE = 16 * 1024 if ssl.OPENSSL_VERSION_INFO >= (3, 5) else 6 * 1024
HANDSHAKE_FAILURE = bytes([21, 3, 3, 0, 2, 2, 40])  # the record of a fatal alert (RFC 8446, 6.2)
# Records without application data that a peer may send per request: KeyUpdates, warnings, empty records. Go's limit,
# crypto/tls/common.go (maxUselessRecords), counts only consecutive ones.
MAX_USELESS_RECORDS = 16
RECORDS_PER_TURN = 16  # a review in Go's smallest records has 9; a client's second flight has 3, with a certificate 5


def tls_opener(
    get_context: Callable[[], ssl.SSLContext | None], trusted_cas: Callable[[], str] = str
) -> Callable[[socket.socket], Channel | None]:
    """Return a function that opens a channel with the current TLS context; it returns None if there is none.

    A channel is outdated as soon as `trusted_cas`, the CAs of clients, has changed since it was opened.
    """

    def open_channel(sock: socket.socket) -> Channel | None:
        # Before the context: if the CAs change in between, the channel is outdated too early, but never too late.
        accepted_by = trusted_cas()
        context = get_context()
        return TlsChannel(sock, context, lambda: trusted_cas() != accepted_by) if context else None

    return open_channel


class TlsChannel(Channel):
    """One accepted TLS connection."""

    starts_with_handshake = True

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, is_outdated: Callable[[], bool]) -> None:
        super().__init__(sock, is_outdated)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._received = b""  # ciphertext that TLS has not got yet
        self._useless_records = self._handshake_bytes = 0
        self._at_end = self._half_closed = False
        self._hellos = HelloInspector()

    @property
    def buffered(self) -> int:
        """The bytes in memory that the peer has sent or has not read yet."""
        return len(self._received) + len(self._unsent)

    def handshake(self) -> bool:
        """Continue the handshake and return whether it is complete."""
        if not self._fill():
            raise ConnectionLost("reset")
        for _ in range(RECORDS_PER_TURN):
            # One by one: the records after the handshake don't count, as the first request may come with its end.
            record, _ = self._take_records(1)
            if not record:
                return False
            self._handshake_bytes += len(record)
            passed = self._hellos.inspect(record) if self._handshake_bytes <= MAX_HANDSHAKE else None
            if passed is None:
                self._outgoing.write(HANDSHAKE_FAILURE)
                self._flush()
                raise ConnectionLost("tls")
            self._incoming.write(passed)
            if passed and self._run(self._tls.do_handshake):
                self.has_input = bool(self._received)
                return True
        return False

    def receive(self) -> bytes | None:
        """Return the data of some records, b"" at the end of the stream, or None if no data has arrived."""
        if self._half_closed:  # the caller discards the data, so don't decrypt it
            return super().receive()
        if self._at_end or not self._fill():
            return b""
        records, passed = self._take_records(RECORDS_PER_TURN)
        self._incoming.write(records)
        data = list[bytes]()
        self._run(partial(self._read_records, data))
        self._useless_records += passed - len(data)
        if self._useless_records > MAX_USELESS_RECORDS:
            raise ConnectionLost("tls")
        return b"".join(data) if data or self._at_end else None

    def send(self, data: bytes, *, last: bool = False) -> bool:
        """Append `data` to the unsent bytes, send, and return whether all bytes are sent. The `last` ends TLS."""
        if data:  # 2 KiB of a response; a megabyte would take 1 ms
            self._tls.write(data)
        if last:
            self._close_tls()  # in one packet with the response
        sent = self._flush()
        if sent:
            self._useless_records = 0
        return sent

    def half_close(self) -> None:
        """Send close_notify and close the sending side. The peer can still read all sent bytes."""
        self._close_tls()
        with suppress(ConnectionLost):
            self._flush()
        super().half_close()

    def _close_tls(self) -> None:
        if not self._half_closed:
            self._half_closed = True
            self._received, self.has_input = b"", False
            with suppress(OSError, ValueError):  # close_notify is written; don't wait for the peer's
                self._tls.unwrap()

    def _read_records(self, data: list[bytes]) -> None:
        incoming, read = self._incoming, self._tls.read
        while incoming.pending:
            if not (record := read(MAX_PLAINTEXT)):
                self._at_end = self.has_input = True  # close_notify: TLS reads nothing that follows it
                break
            data.append(record)

    def _run(self, operation: Callable[[], None]) -> bool:
        """Run an operation that reads records, and send what TLS answers. Return False if it needs another record."""
        try:
            operation()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLCertVerificationError as error:
            raise ConnectionLost("certificate", error.verify_message) from None
        except ssl.SSLError as error:
            if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
                raise ConnectionLost("certificate", "no certificate was sent") from None
            raise ConnectionLost("tls") from None
        finally:
            if self._outgoing.pending:  # also an alert
                self._flush()
        return True

    def _fill(self) -> bool:
        """Read what has arrived unless a record is in memory. Return False at the end of the stream."""
        if self._unsent:
            self._flush()
        data = None if self.has_input else super().receive()
        if data:
            self._received += data
        return data != b""

    def _take_records(self, limit: int) -> tuple[bytes, int]:
        """Return the next complete records for TLS, or what is no record, and their number."""
        received = self._received
        size = len(self._received)
        end = 0
        number = 0
        last_header = size - HEADER_SIZE
        while end <= last_header and number < limit:
            content_type, length = unpack_header(received, end)
            if length > MAX_CIPHERTEXT or content_type not in CONTENT_TYPES:
                end = size
            elif (record_end := end + HEADER_SIZE + length) <= size:
                end = record_end
            else:
                break
            number += 1
        self._received = received[end:]
        self.has_input = number == limit and end < size
        return received[:end], number

    def _flush(self) -> bool:
        if self._outgoing.pending:
            self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
        return super()._flush()
