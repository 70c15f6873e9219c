"""The content of the Secret: the signing CA, the serving certificate, the other trusted CAs, and their encoding."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from certs import authority
from certs.authority import BadCertificate, Issued

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


@dataclass(frozen=True, slots=True)
class RetiringCA:
    """A CA that no longer signs. It stays trusted until the last leaf that it signed has expired."""

    certificate: bytes
    until: datetime


@dataclass(frozen=True, slots=True)
class Bundle:
    """A CA, its serving certificate, and the state of a rotation.

    `next_ca` is published but does not sign yet. `published` is when every webhook of the configuration was first seen
    to trust `next_ca`, or None. With `drop_old_early`, the old CAs are dropped as soon as all replicas have read the
    leaf of the next CA.
    """

    authority: Issued
    leaf: Issued
    next_ca: Issued | None = None
    published: datetime | None = None
    retiring: tuple[RetiringCA, ...] = ()
    drop_old_early: bool = False

    def ca_bundle(self) -> bytes:
        """Return all CAs. Their order stays the same when the next CA takes over."""
        next_ca = [self.next_ca.certificate] if self.next_ca else []
        return b"".join(sorted({self.authority.certificate, *next_ca, *(one.certificate for one in self.retiring)}))


class InvalidBundle(CertificateError):
    """A Secret without a usable bundle: it is empty (MISSING), has other data (FOREIGN), or is DAMAGED."""


UTCTime = Annotated[datetime, msgspec.Meta(tz=True)]


class _RetiringState(msgspec.Struct):
    certificate: str
    until: UTCTime


class _State(msgspec.Struct, rename={"retiring": "leaving", "drop_old_early": "hurry"}):
    """The field `state.json`, with the names that earlier versions gave its fields."""

    published: UTCTime | None = None
    retiring: list[_RetiringState] = []
    drop_old_early: bool = False


def read(secret: JsonObject) -> Bundle | InvalidBundle:
    """Decode the bundle in a Secret. An InvalidBundle names the invalid field, but does not quote its content."""
    metadata, data = secret.get("metadata") or {}, secret.get("data") or {}
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
        return _decode({field: _decode_base64(field, value) for field, value in data.items()})
    except InvalidBundle as error:
        return InvalidBundle(error.cause, f"{name}: {error}")


def content(secret: JsonObject, field: str) -> bytes:
    """Return a decoded field of any Secret; empty if it is missing or not base64."""
    try:
        return _decode_base64(field, (secret.get("data") or {}).get(field, ""))
    except InvalidBundle:
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
    retiring = [_RetiringState(one.certificate.decode(), one.until) for one in bundle.retiring]
    yield STATE, msgspec.json.encode(_State(bundle.published, retiring, bundle.drop_old_early))


def _decode(data: dict[str, bytes]) -> Bundle:
    state = _decode_state(data)
    next_ca = _key_pair(data, NEXT_CA, NEXT_CA_KEY) if NEXT_CA in data or NEXT_CA_KEY in data else None
    if next_ca:
        _require_ca(NEXT_CA, next_ca.certificate)
        _checked(NEXT_CA_KEY, authority.signing_key, next_ca)
    return Bundle(
        authority=_signing_ca(data),
        leaf=_key_pair(data, CERTIFICATE, KEY),
        next_ca=next_ca,
        published=state.published if next_ca else None,
        retiring=tuple(_retiring_ca(one) for one in state.retiring),
        drop_old_early=bool(next_ca and state.drop_old_early),
    )


def _signing_ca(data: dict[str, bytes]) -> Issued:
    """Find the CA in `ca.crt` that `ca.key` belongs to. `ca.crt` contains all trusted CAs."""
    key = _required(data, CA_KEY)
    for certificate in _checked(CA, authority.split, _required(data, CA)):
        _checked(CA, authority.read, certificate)
        pair = Issued(certificate, key)
        if _checked(CA_KEY, authority.key_matches, pair):
            _require_ca(CA, certificate)
            _checked(CA_KEY, authority.signing_key, pair)
            return pair
    raise _damaged(CA_KEY, f"does not match any certificate in {CA}")


def _key_pair(data: dict[str, bytes], certificate: str, key: str) -> Issued:
    pair = Issued(_required(data, certificate), _required(data, key))
    _checked(certificate, authority.read, pair.certificate)
    if not _checked(key, authority.key_matches, pair):
        raise _damaged(key, f"does not match {certificate}")
    return pair


def _require_ca(field: str, certificate: bytes) -> None:
    if not _checked(field, authority.read, certificate).is_ca:
        raise _damaged(field, "not a CA certificate")


def _decode_state(data: dict[str, bytes]) -> _State:
    try:
        return msgspec.json.decode(_required(data, STATE), type=_State)
    except (ValueError, RecursionError) as error:
        raise _damaged(STATE, str(error)) from None


def _retiring_ca(state: _RetiringState) -> RetiringCA:
    certificate = state.certificate.encode()
    _require_ca(STATE, certificate)
    return RetiringCA(certificate, state.until)


def _required(data: dict[str, bytes], field: str) -> bytes:
    if not data.get(field):
        raise _damaged(field, "missing")
    return data[field]


def _decode_base64(field: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise _damaged(field, "invalid base64") from None


def _checked(field: str, function: Any, argument: Any) -> Any:
    try:
        return function(argument)
    except BadCertificate as error:
        raise _damaged(field, str(error)) from None


def _damaged(field: str, what: str) -> InvalidBundle:
    return InvalidBundle(Cause.DAMAGED, f"{field}: {what}")
