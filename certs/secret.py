"""The content of the Secret: the serving certificate, the next one, the other trusted ones, and their encoding."""

import base64
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from certs.authority import LIFETIME, BadCertificate, Issued, check_lifetime, key_matches, read_ca, split
from certs.authority import read as read_certificate

ANNOTATION, SELF_MANAGED = "kubevirt-scheduler/certificates", "self"

JsonObject = dict[str, Any]

# The keys of a Secret of type kubernetes.io/tls, so that a pod can mount it, and the one that cert-manager adds.
CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"
# What the webhook needs besides. In earlier versions, a CA signed the serving certificate. They read what these fields
# contain now as CAs, and this version reads their Secret, so replicas of both can run beside each other.
CA_KEY = "ca.key"
NEXT = "next-ca.crt"
NEXT_KEY = "next-ca.key"
STATE = "state.json"
CA_LIFETIME = timedelta(days=365)  # of a CA of earlier versions


class Cause(StrEnum):
    """Why a pass failed. Each value is a label of a metric."""

    FORBIDDEN = "forbidden"
    MISSING = "missing"
    FOREIGN = "foreign"
    DAMAGED = "damaged"
    CONFLICT = "conflict"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    INTERNAL = "internal"


class CertificateError(Exception):
    """A failure of a pass. The message is one line with the problem and the fix."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.cause = cause


UTCTime = Annotated[datetime, msgspec.Meta(tz=True)]


class Retiring(Struct, frozen=True):
    """A certificate that was served before, or the CA that signed it."""

    certificate: str
    until: UTCTime  # the end of the trust in it: normally, when it expires


class Bundle(Struct, frozen=True):
    """The certificates of the Secret, and the state of a renewal."""

    serving: Issued  # the pair that replicas serve
    next: Issued | None = None  # the pair that they will serve. It is published before.
    # The time since which every webhook of the configuration trusts `next`; None while one does not.
    published: datetime | None = None
    retiring: tuple[Retiring, ...] = ()
    # The CA that signed `serving`, in a Secret of an earlier version; None if `serving` signed itself.
    ca: Issued | None = None

    @property
    def anchor(self) -> Issued:
        """Return the pair whose certificate a client must trust."""
        return self.ca or self.serving

    def ca_bundle(self) -> bytes:
        """Return all trusted certificates. Their order stays the same when the next pair is served."""
        next_pair = [self.next.certificate] if self.next else []
        retiring = [one.certificate.encode() for one in self.retiring]
        return b"".join(sorted({self.anchor.certificate, *next_pair, *retiring}))


class InvalidBundle(CertificateError):
    """A Secret without a usable bundle: it is empty (MISSING), has other data (FOREIGN), or is DAMAGED."""


class _State(Struct):
    """The field `state.json`."""

    published: UTCTime | None = None
    retiring: tuple[Retiring, ...] = ()


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
    bundle_fields = (CERTIFICATE, KEY, CA, CA_KEY, NEXT, NEXT_KEY, STATE)
    others = {field: value for field, value in (secret.get("data") or {}).items() if field not in bundle_fields}
    encoded = {field: base64.b64encode(content).decode() for field, content in _encode(bundle)}
    return secret | {"metadata": metadata | {"annotations": annotations}, "data": others | encoded}


def _encode(bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    yield CERTIFICATE, bundle.serving.certificate
    yield KEY, bundle.serving.key
    yield CA, bundle.ca_bundle()
    yield CA_KEY, bundle.anchor.key
    if bundle.next:
        yield NEXT, bundle.next.certificate
        yield NEXT_KEY, bundle.next.key
    yield STATE, msgspec.json.encode(_State(bundle.published, bundle.retiring))


def _decode(data: dict[str, bytes]) -> Bundle:
    state = msgspec.json.decode(data[STATE], type=_State)
    for one in state.retiring:  # of any lifetime: another source may have issued it, and `until` limits the trust
        read_ca(one.certificate.encode())
    serving = Issued(data[CERTIFICATE], data[KEY])
    if not key_matches(serving):
        raise BadCertificate(f"{KEY} does not match {CERTIFICATE}")
    check_lifetime(read_certificate(serving.certificate), LIFETIME)
    next_pair = _trusted(data[NEXT], data[NEXT_KEY]) if NEXT in data or NEXT_KEY in data else None
    anchor = _trusted(data[CA], data[CA_KEY])  # `ca.crt` contains all trusted certificates
    return Bundle(serving, next_pair, state.published, state.retiring, None if anchor == serving else anchor)


def _trusted(certificates: bytes, key: bytes) -> Issued:
    """Find the trusted certificate that a key belongs to. Raises BadCertificate if there is none."""
    for pair in (Issued(certificate, key) for certificate in split(certificates)):
        if key_matches(pair):
            check_lifetime(read_ca(pair.certificate), CA_LIFETIME)
            return pair
    raise BadCertificate("a key does not match its certificate")
