"""A minimal NFSv4.1 client (RFC 8881): one session on one connection, and reads and writes of one open file.

It replaces libnfs. Debian 12 has libnfs 4.0, which can't encode an NFSv4 write of 4 KiB, and which speaks NFSv4.0 while
Longhorn mounts with NFSv4.1. This client has no cache: like O_DIRECT, it sends each request to the server.
"""

from __future__ import annotations

import os
import socket
from struct import Struct, pack, unpack_from

LOOPBACK, TIMEOUT = "127.0.0.1", 30.0  # seconds for one reply
CALL, RPC_VERSION, NFS_PROGRAM, NFS_VERSION, COMPOUND, MINOR_VERSION = 0, 2, 100003, 4, 1, 1
GETFH, LOOKUP, OPEN, PUTFH, PUTROOTFH, READ, WRITE = 10, 15, 18, 22, 24, 25, 38
EXCHANGE_ID, CREATE_SESSION, SEQUENCE, RECLAIM_COMPLETE = 42, 43, 53, 58
SHARE_BOTH_NO_DELEGATION = 0x403
FILE_SYNC = 2  # the server has written data and metadata to stable storage before it replies
LAST_FRAGMENT = 0x80000000
LARGEST = 2 * 1024 * 1024  # bytes of one request or response
SLOTS = 64

# Results have a fixed layout up to the fields read here: each operation begins with its number and status.
RPC_REPLY = Struct(">IIIIII")  # xid, REPLY, MSG_ACCEPTED, verifier's flavor and length, SUCCESS
COMPOUND_REPLY = Struct(">III")  # status, length of the tag, number of operations
SESSION_AT, SLOT_AT = 8, 8 + 16 + 4
AFTER_SEQUENCE = 8 + 16 + 5 * 4
WITHOUT_RESULT = 8  # of PUTROOTFH, PUTFH and LOOKUP
COUNT_OF_WRITE, COUNT_OF_READ = (AFTER_SEQUENCE + WITHOUT_RESULT + 8 + skipped for skipped in (0, 4))  # eof


class NfsError(RuntimeError):
    """A request that the server refused, or a reply that makes no sense."""


def opaque(data: bytes) -> bytes:
    """Encode bytes of variable length: the length, the bytes, and padding to four bytes."""
    return pack(">I", len(data)) + data + bytes(-len(data) % 4)


def lookup(name: str) -> bytes:
    """Encode LOOKUP: from the current folder to an entry."""
    return pack(">I", LOOKUP) + opaque(name.encode())


def channel(slots: int) -> bytes:
    """Encode the attributes of a session's channel, with space for `slots` requests at a time."""
    return pack(">IIIIIII", 0, LARGEST, LARGEST, 4096, 8, slots, 0)


class OpenFile:
    """An open file of an export. Up to 64 requests, each in a slot of its own, may wait for their replies."""

    def __init__(self, port: int, export: str, name: str) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._xid = 0
        self._sequence = [0] * SLOTS
        system_credential = opaque(pack(">I", 0) + opaque(b"benchmark") + pack(">III", 0, 0, 0))
        self._call = pack(">IIIII", CALL, RPC_VERSION, NFS_PROGRAM, NFS_VERSION, COMPOUND)
        self._call += pack(">I", 1) + system_credential + pack(">IIII", 0, 0, 0, MINOR_VERSION)
        client = self._create_session()
        folder = pack(">I", PUTROOTFH) + lookup(export)
        reply = self._request(4, folder + lookup(name) + pack(">I", GETFH), 0)
        at = AFTER_SEQUENCE + 3 * WITHOUT_RESULT + 8
        (length,) = unpack_from(">I", reply, at)
        self._put_file = pack(">I", PUTFH) + opaque(reply[at + 4 : at + 4 + length])
        opening = pack(">IIIIQ", OPEN, 0, SHARE_BOTH_NO_DELEGATION, 0, client) + opaque(b"benchmark")
        reply = self._request(3, folder + opening + pack(">II", 0, 0) + opaque(name.encode()), 0)
        at = AFTER_SEQUENCE + 2 * WITHOUT_RESULT + 8
        self._state_id = reply[at : at + 16]

    def write(self, slot: int, offset: int, data: bytes) -> None:
        """Send a synchronous write. `data` is the encoded payload: `opaque(...)`."""
        self._send(2, self._put_file + pack(">I", WRITE) + self._state_id + pack(">QI", offset, FILE_SYNC) + data, slot)

    def read(self, slot: int, offset: int, size: int) -> None:
        """Send a read."""
        self._send(2, self._put_file + pack(">I", READ) + self._state_id + pack(">QI", offset, size), slot)

    def receive(self, count_at: int) -> tuple[int, int]:
        """Wait for the next reply. Returns its slot and the number of bytes that it reports at this position."""
        reply = self._receive()
        return unpack_from(">I", reply, SLOT_AT)[0], unpack_from(">I", reply, count_at)[0]

    def close(self) -> None:
        """Close the connection. The server ends the session by itself."""
        self._socket.close()

    def _create_session(self) -> int:
        """Return the client's number at the server."""
        owner = os.urandom(8) + opaque(f"benchmark-{os.getpid()}-{id(self)}".encode())
        self._send(0, pack(">I", EXCHANGE_ID) + owner + pack(">III", 0, 0, 0))
        client, sequence = unpack_from(">QI", self._receive(), 8)
        create = pack(">IQII", CREATE_SESSION, client, sequence, 0) + channel(SLOTS) + channel(1)
        self._send(0, create + pack(">III", 0x40000000, 1, 0))  # no callback program, one security flavor: none
        self._session = self._receive()[SESSION_AT : SESSION_AT + 16]
        self._request(1, pack(">II", RECLAIM_COMPLETE, 0), 0)
        return int(client)

    def _request(self, operations: int, encoded: bytes, slot: int) -> bytes:
        self._send(operations, encoded, slot)
        return self._receive()

    def _send(self, operations: int, encoded: bytes, slot: int | None = None) -> None:
        """Send a COMPOUND. With a slot, a SEQUENCE comes first."""
        sequence = b""
        if slot is not None:
            self._sequence[slot] += 1
            sequence = pack(">I", SEQUENCE) + self._session + pack(">IIII", self._sequence[slot], slot, SLOTS - 1, 0)
        self._xid += 1
        message = pack(">I", self._xid) + self._call + pack(">I", 1 + operations) + sequence + encoded
        self._socket.sendall(pack(">I", LAST_FRAGMENT | len(message)) + message)

    def _receive(self) -> bytes:
        """Return the results of the next reply."""
        (header,) = unpack_from(">I", self._receive_exactly(4))
        reply = self._receive_exactly(header & ~LAST_FRAGMENT)
        *_, verifier, accepted = RPC_REPLY.unpack_from(reply)
        status, tag, _ = COMPOUND_REPLY.unpack_from(reply, RPC_REPLY.size)
        if verifier or accepted or status or tag:
            raise NfsError(f"the server refuses the request: RPC status {accepted}, NFS status {status}")
        return reply[RPC_REPLY.size + COMPOUND_REPLY.size :]

    def _receive_exactly(self, size: int) -> bytes:
        received = bytearray(size)
        view, position = memoryview(received), 0
        while position < size:
            if not (count := self._socket.recv_into(view[position:])):
                raise NfsError("the server has closed the connection")
            position += count
        return bytes(received)
