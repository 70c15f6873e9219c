"""Builds ClientHello messages of any size and content, which no TLS library would send (RFC 8446, 4.1.2)."""

from collections.abc import Iterable, Mapping

HANDSHAKE_RECORD = 22
AES_128_GCM_SHA256, ECDHE_ECDSA_AES_128 = 0x1301, 0xC02B
SUPPORTED_GROUPS, SIGNATURE_ALGORITHMS, SUPPORTED_VERSIONS, KEY_SHARE = 10, 13, 43, 51
EC_POINT_FORMATS = 11
ECDSA_SECP256R1, RSA_PSS_SHA256 = 0x0403, 0x0804
TLS12, TLS13 = 0x0303, 0x0304

# The named groups of OpenSSL 3.0 and 3.5, and a valid key share of each: a generator of the group.
X25519, X448, P256, P384, P521 = 29, 30, 23, 24, 25
HYBRID = 4588  # X25519MLKEM768
FFDHE = {256: 2048, 257: 3072, 258: 4096, 259: 6144, 260: 8192}  # and its bits


def vector(content: bytes, size: int = 2) -> bytes:
    """Return content behind its length in `size` bytes."""
    return len(content).to_bytes(size, "big") + content


def numbers(values: Iterable[int]) -> bytes:
    return b"".join(value.to_bytes(2, "big") for value in values)


def key_share(group: int, share: bytes) -> bytes:
    return group.to_bytes(2, "big") + vector(share)


def client_hello(
    groups: Iterable[int] = (X25519,),
    shares: Iterable[tuple[int, bytes]] = (),
    extensions: Mapping[int, bytes] | Iterable[tuple[int, bytes]] = (),
    *,
    versions: Iterable[int] = (TLS13,),
    suites: Iterable[int] = (AES_128_GCM_SHA256, ECDHE_ECDSA_AES_128),
    session: bytes = b"",
) -> bytes:
    """Return a ClientHello message. The `extensions` follow the ones that a handshake needs."""
    parts = [
        (SUPPORTED_GROUPS, vector(numbers(groups))),
        (SIGNATURE_ALGORITHMS, vector(numbers([ECDSA_SECP256R1, RSA_PSS_SHA256]))),
        (EC_POINT_FORMATS, vector(b"\0", 1)),
    ]
    if TLS13 in (listed := list(versions)):
        parts += [(SUPPORTED_VERSIONS, vector(numbers(listed), 1))]
        parts += [(KEY_SHARE, vector(b"".join(key_share(*share) for share in shares)))]
    parts += extensions.items() if isinstance(extensions, Mapping) else extensions
    encoded = b"".join(kind.to_bytes(2, "big") + vector(content) for kind, content in parts)
    body = TLS12.to_bytes(2, "big") + bytes(range(32)) + vector(session, 1)
    body += vector(numbers(suites)) + vector(b"\0", 1) + vector(encoded)
    return b"\1" + vector(body, 3)


def records(message: bytes, size: int = 16384, content_type: int = HANDSHAKE_RECORD) -> bytes:
    """Return a message in records of at most this size."""
    parts = [message[start : start + size] for start in range(0, len(message), size)]
    return b"".join(bytes([content_type, 3, 1]) + vector(part) for part in parts)
