"""The content of the Secret: the signing CA, the serving certificate, the other trusted CAs, and their encoding."""

import base64
from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from certs.authority import (
    CA_LIFETIME,
    LEAF_LIFETIME,
    BadCertificate,
    Issued,
    check_lifetime,
    key_matches,
    read_ca,
    signing_key,
    split,
)
from certs.authority import read as read_certificate

ANNOTATION, SELF_MANAGED = "kubevirt-scheduler/certificates", "self"

JsonObject = dict[str, Any]

# The keys of a Secret of type kubernetes.io/tls, so that a pod can mount it, and the one that cert-manager adds.
CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"
# What the webhook needs besides.
CA_KEY, NEXT_CA, NEXT_CA_KEY, STATE = "ca.key", "next-ca.crt", "next-ca.key", "state.json"


class Cause(StrEnum):
    """Why a pass failed. Each value is a label of a metric."""

    FORBIDDEN = "forbidden"
    MISSING = "missing"
    FOREIGN = "foreign"
    DAMAGED = "damaged"
    CONFLICT = "conflict"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    FOLDER = "folder"
    INTERNAL = "internal"


class CertificateError(Exception):
    """A failure of a pass. The message is one line with the problem and the fix."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.cause = cause


UTCTime = Annotated[datetime, msgspec.Meta(tz=True)]


class RetiringCA(Struct, frozen=True):
    """A CA that no longer signs."""

    certificate: str
    until: UTCTime  # the end of the trust in it: normally, when the last leaf that it signed expires


class Bundle(Struct, frozen=True):
    """The certificates of the Secret, and the state of a rotation."""

    authority: Issued  # the CA that signs
    leaf: Issued  # the serving certificate
    # The CA that will sign. It is published before.
    next_ca: Issued | None = None
    # The time since which every webhook of the configuration trusts `next_ca`; None while one does not.
    published: datetime | None = None
    retiring: tuple[RetiringCA, ...] = ()  # the CAs that signed before

    def ca_bundle(self) -> bytes:
        """Return all CAs. Their order stays the same when the next CA takes over."""
        next_ca = [self.next_ca.certificate] if self.next_ca else []
        retiring = [one.certificate.encode() for one in self.retiring]
        return b"".join(sorted({self.authority.certificate, *next_ca, *retiring}))


class InvalidBundle(CertificateError):
    """A Secret without a usable bundle: it is empty (MISSING), has other data (FOREIGN), or is DAMAGED."""


class _State(Struct):
    """The field `state.json`."""

    published: UTCTime | None = None
    retiring: tuple[RetiringCA, ...] = ()


def read(secret: JsonObject) -> Bundle | InvalidBundle:
    """Decode the bundle in a Secret. The message of an InvalidBundle does not quote the content."""
    metadata = secret.get("metadata") or {}
    data = secret.get("data") or {}
    name = f"Secret {metadata.get('namespace', '')}/{metadata.get('name', '')}"
    if not any(data.values()):
        return InvalidBundle(Cause.MISSING, f"{name} is empty; the first replica fills it")
    if (metadata.get("annotations") or {}).get(ANNOTATION) != SELF_MANAGED:
        return InvalidBundle(
            Cause.FOREIGN,
            f"{name} contains {', '.join(sorted(data))} but lacks the annotation {ANNOTATION}, so the webhook does not "
            "overwrite it; name another Secret, remove the data of this one, or use certificate source `provided`",
        )
    try:
        return _decode({field: base64.b64decode(value, validate=True) for field, value in data.items() if value})
    except KeyError as error:
        return InvalidBundle(Cause.DAMAGED, f"{name} is damaged: {error} is missing")
    except (ValueError, TypeError, RecursionError) as error:  # ValueError: BadCertificate, and malformed base64 or JSON
        return InvalidBundle(Cause.DAMAGED, f"{name} is damaged: {error}")


def decoded(fields: JsonObject | None, field: str) -> bytes:
    """Return a field that an object holds in base64; empty if it is missing or not base64."""
    try:
        return base64.b64decode((fields or {}).get(field) or "", validate=True)
    except (ValueError, TypeError):
        return b""


def written(bundle: Bundle, secret: JsonObject) -> JsonObject:
    """Return a copy of the Secret with this bundle in it. Other fields and annotations stay."""
    metadata = secret.get("metadata") or {}
    annotations = (metadata.get("annotations") or {}) | {ANNOTATION: SELF_MANAGED}
    bundle_fields = (CERTIFICATE, KEY, CA, CA_KEY, NEXT_CA, NEXT_CA_KEY, STATE)
    others = {field: value for field, value in (secret.get("data") or {}).items() if field not in bundle_fields}
    encoded = {field: base64.b64encode(content).decode() for field, content in _encode(bundle)}
    return secret | {"metadata": metadata | {"annotations": annotations}, "data": others | encoded}


def _encode(bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    yield CERTIFICATE, bundle.leaf.certificate
    yield KEY, bundle.leaf.key
    yield CA, bundle.ca_bundle()
    yield CA_KEY, bundle.authority.key
    if bundle.next_ca:
        yield NEXT_CA, bundle.next_ca.certificate
        yield NEXT_CA_KEY, bundle.next_ca.key
    yield STATE, msgspec.json.encode(_State(bundle.published, bundle.retiring))


def _decode(data: dict[str, bytes]) -> Bundle:
    state = msgspec.json.decode(data[STATE], type=_State)
    for one in state.retiring:
        check_lifetime(read_ca(one.certificate.encode()), CA_LIFETIME)
    next_ca = _ca((data[NEXT_CA],), data[NEXT_CA_KEY]) if NEXT_CA in data or NEXT_CA_KEY in data else None
    leaf = Issued(data[CERTIFICATE], data[KEY])
    if not key_matches(leaf):
        raise BadCertificate(f"{KEY} does not match {CERTIFICATE}")
    check_lifetime(read_certificate(leaf.certificate), LEAF_LIFETIME)
    signing = _ca(split(data[CA]), data[CA_KEY])  # `ca.crt` contains all trusted CAs
    return Bundle(signing, leaf, next_ca, state.published, state.retiring)


def _ca(certificates: Iterable[bytes], key: bytes) -> Issued:
    """Find the CA that a key belongs to. Raises BadCertificate if there is none, or if the key can't sign."""
    for pair in (Issued(certificate, key) for certificate in certificates):
        if key_matches(pair):
            check_lifetime(read_ca(pair.certificate), CA_LIFETIME)
            signing_key(pair)
            return pair
    raise BadCertificate("the key of a CA does not match its certificate")
