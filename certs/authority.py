"""Issue and read X.509 certificates in PEM. The caller passes the current time."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

LIFETIME = timedelta(days=30)
# Certificates are valid from this long before their issue: a replica's clock may be ahead, an API server's behind.
BACKDATED = timedelta(days=60)
SUBJECT = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubevirt-scheduler")])

# The exceptions that the parser raises for malformed input.
_MALFORMED_X509 = (x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType)
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, *_MALFORMED_X509)


# A wildcard, and the characters of host names. Those have no underscore, but some names that clients call do.
_DNS = re.compile(r"(\*\.)?[a-zA-Z0-9_.-]{1,253}")


class BadCertificate(ValueError):
    """A certificate, key or name that can't be used. The message is one line without key or certificate content."""


class Issued(Struct, frozen=True):
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"Issued({self.certificate!r})"  # without the key


class Certificate(Struct, frozen=True):
    """The fields of a certificate."""

    subject: str
    names: tuple[str, ...]  # the DNS names and IP addresses that it is valid for
    not_before: datetime
    not_after: datetime
    is_ca: bool
    fingerprint: str  # SHA-256, in hexadecimal

    def is_valid(self, now: datetime) -> bool:
        """Return whether the time is within the validity period; its end is excluded."""
        return self.not_before <= now < self.not_after


def issue(names: Sequence[str], now: datetime, lifetime: timedelta = LIFETIME) -> Issued:
    """Issue a serving certificate for DNS names and IP addresses. It signs itself, so a client can trust it directly.

    Raises BadCertificate if `names` is empty or has an invalid name.
    """
    if not names:
        raise BadCertificate("a serving certificate needs a name")
    key = ec.generate_private_key(ec.SECP256R1())
    public_key = key.public_key()
    # It signs handshakes. It is also a CA, because replicas of earlier versions trust nothing else (decision 48).
    usage = x509.KeyUsage(True, False, False, False, False, True, False, False, False)
    certificate = (
        x509.CertificateBuilder(SUBJECT, SUBJECT, public_key, x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key), critical=False)
        .sign(key, SHA256())
    )
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(certificate.public_bytes(Encoding.PEM), key_pem)


def read(pem: bytes) -> Certificate:
    """Read the first certificate of a PEM file. Raises BadCertificate."""
    certificate = _load_certificate(pem)
    try:  # `cryptography` parses most fields lazily, so malformed ones raise here
        certificate.public_key()
        extensions: dict[Any, Any] = {extension.oid: extension.value for extension in certificate.extensions}
        return Certificate(
            subject=certificate.subject.rfc4514_string(),
            names=tuple(str(name.value) for name in extensions.get(x509.SubjectAlternativeName.oid, ())),
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
            is_ca=getattr(extensions.get(x509.BasicConstraints.oid), "ca", False),
            fingerprint=certificate.fingerprint(SHA256()).hex(),
        )
    except _UNREADABLE:
        raise BadCertificate("contains an unreadable certificate") from None


def read_ca(pem: bytes) -> Certificate:
    """Read a CA certificate. Raises BadCertificate for any other."""
    certificate = read(pem)
    if not certificate.is_ca:
        raise BadCertificate("contains a certificate that is not a CA's")
    return certificate


def split(pem: bytes) -> tuple[bytes, ...]:
    """Return each certificate of a PEM file, encoded again without other text. Raises BadCertificate if it has none."""
    try:
        return tuple(one.public_bytes(Encoding.PEM) for one in x509.load_pem_x509_certificates(pem))
    except _UNREADABLE:
        raise BadCertificate("contains no PEM certificate") from None


def check_lifetime(certificate: Certificate, lifetime: timedelta) -> None:
    """Raise BadCertificate for a certificate that lives longer than those issued here: a thief of the token made it."""
    if certificate.not_after - certificate.not_before > lifetime + BACKDATED:
        raise BadCertificate(f"a certificate lives longer than {lifetime.days} days, so the webhook did not issue it")


def key_matches(issued: Issued) -> bool:
    """Return whether the private key belongs to the certificate. Raises BadCertificate if either is unreadable."""
    read(issued.certificate)
    return bool(_load_certificate(issued.certificate).public_key() == _load_key(issued.key).public_key())


def signed_by(certificate: bytes, ca: bytes) -> bool:
    """Verify that a CA's key signed the certificate. Raises BadCertificate if either is unreadable."""
    child = _load_certificate(certificate)
    parent = _load_certificate(ca)
    try:
        child.verify_directly_issued_by(parent)
    except (InvalidSignature, *_UNREADABLE):
        return False
    return True


def _load_certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except _UNREADABLE:
        raise BadCertificate("contains no PEM certificate") from None


def _load_key(pem: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, password=None)
    except _UNREADABLE:
        raise BadCertificate("contains no unencrypted PEM private key") from None


def _general_name(name: str) -> x509.IPAddress | x509.DNSName:
    name = canonical(name)
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def canonical(name: str) -> str:
    """Return a DNS name or an IP address as a certificate holds it. Raises BadCertificate for anything else."""
    with suppress(ValueError):
        if "%" not in name:  # the zone of an IPv6 address is valid on one machine only
            return str(ip_address(name))
    if _DNS.fullmatch(name):
        return name.lower()
    raise BadCertificate(f"{name!a} is neither a DNS name nor an IP address; omit scheme, port and path")


def canonical_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, in the form of `canonical`. Raises BadCertificate."""
    return tuple(dict.fromkeys(map(canonical, names)))


def trust_anchor(chain: bytes, ca_bundle: bytes) -> bytes | None:
    """Find the CA that the first certificate chains to, directly or through intermediates. Raises BadCertificate."""
    certificate, *intermediates = split(chain)
    roots = split(ca_bundle)
    while not (root := next((ca for ca in roots if signed_by(certificate, ca)), None)):
        issuers = [one for one in intermediates if signed_by(certificate, one)]
        if not issuers:
            return None
        certificate = issuers[0]
        intermediates.remove(certificate)
    return root


def valid_cas(ca_bundle: bytes, now: datetime) -> Iterator[bytes]:
    """Yield the CAs that are valid now. Yields nothing more after an unreadable certificate."""
    with suppress(BadCertificate):
        for pem in split(ca_bundle):
            certificate = read(pem)
            if certificate.is_ca and certificate.is_valid(now):
                yield pem
