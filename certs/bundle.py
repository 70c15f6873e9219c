"""What the Secret holds: who signs, what is served, who else is trusted; and how that is written down."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from certs import authority
from certs.authority import BadCertificate, Issued
from certs.cluster import Cause, CertificateError, JsonObject
from certs.serving import CA, CERTIFICATE, KEY

ANNOTATION, OURS = "kubevirt-scheduler/certificates", "self"

# Beside tls.crt, tls.key and ca.crt, which any Secret with a serving certificate has, so that a person may mount it.
CA_KEY, NEXT, NEXT_KEY, STATE = "ca.key", "next-ca.crt", "next-ca.key", "state.json"


@dataclass(frozen=True, slots=True)
class RetiringCA:
    """A CA that signs no more: it is trusted until the last leaf that it signed has expired."""

    certificate: bytes
    until: datetime


@dataclass(frozen=True, slots=True)
class Bundle:
    """A CA and its serving certificate, and what a rotation adds to them.

    `next_ca` is published and does not sign yet. `published` is when every webhook of the configuration was first seen
    to trust it, or None. With `hurry`, a retiring CA is dropped as soon as another CA signs.
    """

    authority: Issued
    leaf: Issued
    next_ca: Issued | None = None
    published: datetime | None = None
    retiring: tuple[RetiringCA, ...] = ()
    hurry: bool = False

    def ca_bundle(self) -> bytes:
        """Return all CAs, in an order that does not change when one of them takes over."""
        next_ca = [self.next_ca.certificate] if self.next_ca else []
        return b"".join(sorted({self.authority.certificate, *next_ca, *(one.certificate for one in self.retiring)}))


class InvalidBundle(CertificateError):
    """Why a Secret gives no bundle: it is empty, it is ours and damaged, or it is foreign (`cause`)."""

    def __init__(self, cause: Cause, field: str, text: str) -> None:
        super().__init__(cause, text)
        self.field = field


def read(secret: JsonObject) -> Bundle | InvalidBundle:
    """Read a Secret. What can't be used is told, naming the field and never its content."""
    metadata, data = secret.get("metadata") or {}, secret.get("data") or {}
    name = f"Secret {metadata.get('namespace', '')}/{metadata.get('name', '')}"
    if not any(data.values()):
        return InvalidBundle(Cause.MISSING, "data", f"{name}: it is empty; the first replica fills it")
    if (metadata.get("annotations") or {}).get(ANNOTATION) != OURS:
        return InvalidBundle(
            Cause.FOREIGN,
            "metadata",
            f"{name}: it holds {', '.join(sorted(data))} without our annotation {ANNOTATION}, so it is left as it is; "
            "name another Secret, or take this one's data away, or choose the certificates' source `provided`",
        )
    try:
        return _decoded({field: _bytes(field, value) for field, value in data.items()})
    except InvalidBundle as flaw:
        return InvalidBundle(flaw.cause, flaw.field, f"{name}: {flaw}")


def content(secret: JsonObject, field: str) -> bytes:
    """Return a field of any Secret; nothing where it is missing or no base64."""
    try:
        return _bytes(field, (secret.get("data") or {}).get(field, ""))
    except InvalidBundle:
        return b""


def written(bundle: Bundle, secret: JsonObject) -> JsonObject:
    """Return the Secret with this bundle in it, and all else in it as it was."""
    metadata = secret.get("metadata") or {}
    annotations = (metadata.get("annotations") or {}) | {ANNOTATION: OURS}
    ours = (CERTIFICATE, KEY, CA, CA_KEY, NEXT, NEXT_KEY, STATE)
    others = {field: value for field, value in (secret.get("data") or {}).items() if field not in ours}
    own = {field: base64.b64encode(content).decode() for field, content in _encoded(bundle)}
    return secret | {"metadata": metadata | {"annotations": annotations}, "data": others | own}


def _encoded(bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    yield CERTIFICATE, bundle.leaf.certificate
    yield KEY, bundle.leaf.key
    yield CA, bundle.ca_bundle()
    yield CA_KEY, bundle.authority.key
    if bundle.next_ca:
        yield NEXT, bundle.next_ca.certificate
        yield NEXT_KEY, bundle.next_ca.key
    retiring = [{"certificate": one.certificate.decode(), "until": one.until.isoformat()} for one in bundle.retiring]
    published = bundle.published.isoformat() if bundle.published else None
    yield STATE, json.dumps({"published": published, "leaving": retiring, "hurry": bundle.hurry}).encode()


def _decoded(data: dict[str, bytes]) -> Bundle:
    state = _state(data)
    next_ca = _pair(data, NEXT, NEXT_KEY) if NEXT in data or NEXT_KEY in data else None
    if next_ca:
        _must_be_ca(NEXT, next_ca.certificate)
    return Bundle(
        authority=_authority(data),
        leaf=_pair(data, CERTIFICATE, KEY),
        next_ca=next_ca,
        published=_time(state.get("published")) if next_ca and state.get("published") else None,
        retiring=tuple(_leaving(one) for one in state.get("leaving") or ()),
        hurry=bool(next_ca and state.get("hurry")),
    )


def _authority(data: dict[str, bytes]) -> Issued:
    """ca.crt holds all CAs: the one that signs is the one whose key there is."""
    key = _needed(data, CA_KEY)
    for certificate in _usable(CA, authority.split, _needed(data, CA)):
        _usable(CA, authority.read, certificate)
        pair = Issued(certificate, key)
        if _usable(CA_KEY, authority.fits, pair):
            _must_be_ca(CA, certificate)
            return pair
    raise _damaged(CA_KEY, f"is the key of no certificate in {CA}")


def _pair(data: dict[str, bytes], certificate: str, key: str) -> Issued:
    pair = Issued(_needed(data, certificate), _needed(data, key))
    _usable(certificate, authority.read, pair.certificate)
    if not _usable(key, authority.fits, pair):
        raise _damaged(key, f"is not the key of {certificate}")
    return pair


def _must_be_ca(field: str, certificate: bytes) -> None:
    if not _usable(field, authority.read, certificate).is_ca:
        raise _damaged(field, "is no CA's certificate")


def _state(data: dict[str, bytes]) -> dict[str, Any]:
    try:
        state = json.loads(_needed(data, STATE))
    except (ValueError, RecursionError):
        raise _damaged(STATE, "is no JSON") from None
    if not isinstance(state, dict) or not isinstance(state.get("leaving") or [], list):
        raise _damaged(STATE, "has another shape")
    return state


def _leaving(entry: Any) -> RetiringCA:
    if not isinstance(entry, dict):
        raise _damaged(STATE, "has another shape")
    certificate = str(entry.get("certificate")).encode()
    _must_be_ca(STATE, certificate)
    return RetiringCA(certificate, _time(entry.get("until")))


def _time(value: Any) -> datetime:
    try:
        time = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        raise _damaged(STATE, "holds a time that is none") from None
    if time.tzinfo is None:
        raise _damaged(STATE, "holds a time without its zone")
    return time


def _needed(data: dict[str, bytes], field: str) -> bytes:
    if not data.get(field):
        raise _damaged(field, "is missing")
    return data[field]


def _bytes(field: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise _damaged(field, "is no base64") from None


def _usable(field: str, question: Any, subject: Any) -> Any:
    try:
        return question(subject)
    except BadCertificate as error:
        raise _damaged(field, str(error)) from None


def _damaged(field: str, what: str) -> InvalidBundle:
    return InvalidBundle(Cause.DAMAGED, field, f"{field}: {what}")
