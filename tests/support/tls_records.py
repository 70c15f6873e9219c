"""A TLS 1.3 client that encrypts its own records, for records that no TLS library sends, such as a KeyUpdate flood."""

import hmac
import ssl
from contextlib import suppress

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HASH, HASH_SIZE, KEY_SIZE, IV_SIZE = "sha384", 48, 32, 12  # of TLS_AES_256_GCM_SHA384, bytes
APPLICATION_DATA, HANDSHAKE, ALERT = 23, 22, 21
CLOSE_NOTIFY = bytes([1, 0])
KEY_UPDATE = bytes([24, 0, 0, 1, 0])  # without a request for an update of the server's keys


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label with an empty context (RFC 8446, 7.1), for at most one block of the hash."""
    full = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(full)]) + full + b"\0"
    return hmac.digest(secret, info + b"\1", HASH)[:size]


class RecordWriter:
    """Encrypts the records of a client after its handshake. `secret` is its first application traffic secret."""

    def __init__(self, secret: bytes) -> None:
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret, self._sequence = secret, 0
        self._cipher, self._iv = AESGCM(_expand(secret, b"key", KEY_SIZE)), _expand(secret, b"iv", IV_SIZE)

    def record(self, content: bytes, content_type: int = APPLICATION_DATA) -> bytes:
        """One encrypted record."""
        nonce = bytes(a ^ b for a, b in zip(self._iv, self._sequence.to_bytes(IV_SIZE, "big"), strict=True))
        head = bytes([APPLICATION_DATA, 3, 3]) + (len(content) + 17).to_bytes(2, "big")
        self._sequence += 1
        return head + self._cipher.encrypt(nonce, content + bytes([content_type]), head)

    def key_updates(self, number: int, after_each: bytes = b"") -> bytes:
        """So many KeyUpdate records, each followed by a record of application data if `after_each` is not empty."""
        parts = []
        for _ in range(number):
            parts.append(self.record(KEY_UPDATE, HANDSHAKE))
            self._use(_expand(self._secret, b"traffic upd", HASH_SIZE))
            if after_each:
                parts.append(self.record(after_each))
        return b"".join(parts)


def handshake(sock, context, folder, turn=lambda: None):
    """Complete a TLS 1.3 handshake over a connected socket and return a writer of further records.

    `turn` is called before each read, for a server that a test drives. The folder gets a key log. Raises OSError if the
    server closes before the end.
    """
    key_log = folder / f"keys-{sock.fileno()}"
    key_log.unlink(missing_ok=True)
    context.keylog_filename = str(key_log)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        done = False
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            done = True
        sock.sendall(outgoing.read())
        turn()
        if done:
            break
        with suppress(BlockingIOError):
            received = sock.recv(65536)
            if not received:
                raise ConnectionResetError("the server closed during the handshake")
            incoming.write(received)
    assert tls.cipher()[0] == "TLS_AES_256_GCM_SHA384"
    [secret] = [
        line.split()[2] for line in key_log.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")
    ]
    return RecordWriter(bytes.fromhex(secret))
