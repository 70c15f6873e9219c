"""Issue and read certificates: PEM in, PEM out, and the time is an argument."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.names import namespaces

CA_LIFE = timedelta(days=365)
LEAF_LIFE = timedelta(days=30)
BACKDATED = timedelta(hours=1)  # a verifier whose clock is behind ours would refuse a certificate of this minute

CA_NAME = "kubevirt-scheduler CA"
LEAF_NAME = "kubevirt-scheduler"

_USAGES = """
    digital_signature content_commitment key_encipherment data_encipherment key_agreement
    key_cert_sign crl_sign encipher_only decipher_only
""".split()
# What the parser raises for bytes that are none of what they should be.
_STRANGE = (x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType)
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, *_STRANGE)


class BadCertificate(ValueError):
    """A certificate, key or name that can't be used. Its text is one line that does not quote it."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key, both in PEM. `key` is a secret: it stays out of `repr`."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Issued(...)"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What stands in a certificate. `permitted` are the DNS domains that a CA is bound to; empty where it is free."""

    subject: str
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    serial: int
    is_ca: bool
    key_id: str
    issuer_id: str
    permitted: tuple[str, ...]
    fingerprint: str

    def is_valid(self, now: datetime) -> bool:
        """Say whether its time has come and is not over."""
        return self.not_before <= now < self.not_after

    def permits(self, names: Iterable[str]) -> bool:
        """Say whether a CA may issue for all of these names."""
        return not self.permitted or all(
            any(f".{name}".endswith(f".{domain}") for domain in self.permitted) for name in names
        )


def issue_ca(now: datetime, names: Sequence[str] = (), life: timedelta = CA_LIFE) -> Issued:
    """Issue a CA. Two of them have one name; verifiers tell them apart by their key identifiers.

    Where all `names` are of Services, it can sign for their namespaces alone.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(CA_NAME)
    builder = (
        _builder(name, name, key, now - BACKDATED, now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if domains := namespaces(str(_alternative(one).value) for one in names):
        builder = builder.add_extension(_constraints(domains), critical=True)
    return _signed(builder, key, key)


def issue_leaf(ca: Issued, names: Sequence[str], now: datetime, life: timedelta = LEAF_LIFE) -> Issued:
    """Issue a serving certificate for DNS names and IP addresses: for its life, or as long as the CA has left.

    Raises BadCertificate for an empty list of names, a name that is neither, and a CA that has expired or has no key.
    """
    if not names:
        raise BadCertificate("a serving certificate needs a name")
    alternatives = [_alternative(name) for name in names]
    issuer, issuer_key = _parsed(ca.certificate), _signing_key(ca)
    if issuer.not_valid_after_utc <= now:
        raise BadCertificate("the CA has expired")
    key = ec.generate_private_key(ec.SECP256R1())
    # Not before the CA either: some verifiers want the one life inside the other.
    start = max(now - BACKDATED, issuer.not_valid_before_utc)
    end = min(now + life, issuer.not_valid_after_utc)
    builder = (
        _builder(_name(LEAF_NAME), issuer.subject, key, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return _signed(builder, key, issuer_key)


@lru_cache(64)  # a pass reads the same few each time
def read(pem: bytes) -> Certificate:
    """Read the first certificate of a PEM file. Raises BadCertificate."""
    parsed = _parsed(pem)
    try:  # the parser looks at most of it only when it is asked for
        parsed.public_key()
        extensions: dict[Any, Any] = {extension.oid: extension.value for extension in parsed.extensions}
        return Certificate(
            subject=parsed.subject.rfc4514_string(),
            names=_values(extensions.get(x509.SubjectAlternativeName.oid)),
            not_before=parsed.not_valid_before_utc,
            not_after=parsed.not_valid_after_utc,
            serial=parsed.serial_number,
            is_ca=getattr(extensions.get(x509.BasicConstraints.oid), "ca", False),
            key_id=_hex(extensions.get(x509.SubjectKeyIdentifier.oid)),
            issuer_id=_hex(extensions.get(x509.AuthorityKeyIdentifier.oid)),
            permitted=_values(getattr(extensions.get(x509.NameConstraints.oid), "permitted_subtrees", ())),
            fingerprint=parsed.fingerprint(SHA256()).hex(),
        )
    except _UNREADABLE:
        raise BadCertificate("holds a certificate that can't be read") from None


def split(pem: bytes) -> tuple[bytes, ...]:
    """Return each certificate of a PEM file, written anew. Raises BadCertificate where there is none."""
    try:
        return tuple(one.public_bytes(Encoding.PEM) for one in x509.load_pem_x509_certificates(pem))
    except _UNREADABLE:
        raise BadCertificate("holds no certificate in PEM") from None


def fits(issued: Issued) -> bool:
    """Say whether the key is the certificate's. Raises BadCertificate where one of them can't be read."""
    read(issued.certificate)
    return bool(_parsed(issued.certificate).public_key() == _key(issued.key).public_key())


def signed_by(certificate: bytes, ca: bytes) -> bool:
    """Say whether a CA's key signed a certificate: the signature is verified. Raises BadCertificate."""
    child, parent = _parsed(certificate), _parsed(ca)
    try:
        child.verify_directly_issued_by(parent)
    except (InvalidSignature, *_UNREADABLE):
        return False
    return True


def _constraints(domains: Iterable[str]) -> x509.NameConstraints:
    # A Secret never leaves its namespace, so a CA in it loses nothing by signing for that namespace's Services alone.
    # A server that is called by another kind of name may get new ones: no constraints.
    return x509.NameConstraints(
        permitted_subtrees=[x509.DNSName(domain) for domain in domains],
        # A subtree of DNS names says nothing of IP addresses.
        excluded_subtrees=[x509.IPAddress(ip_network(every)) for every in ("0.0.0.0/0", "::/0")],
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey
) -> Issued:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(builder.sign(issuer_key, SHA256()).public_bytes(Encoding.PEM), private)


def _parsed(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except _UNREADABLE:
        raise BadCertificate("holds no certificate in PEM") from None


def _key(pem: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, password=None)
    except _UNREADABLE:
        raise BadCertificate("holds no private key in PEM, free of a passphrase") from None


def _signing_key(ca: Issued) -> ec.EllipticCurvePrivateKey:
    key = _key(ca.key)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadCertificate("the CA's key is no elliptic-curve key")
    return key


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(name: str) -> x509.IPAddress | x509.DNSName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        try:
            return x509.DNSName(name.lower())
        except ValueError:
            raise BadCertificate(f"{name!a} is neither a DNS name nor an IP address") from None


def _values(names: Iterable[Any] | None) -> tuple[str, ...]:
    return tuple(str(name.value) for name in names or ())


def _hex(identifier: object) -> str:
    return (getattr(identifier, "key_identifier", None) or b"").hex()


def _usage(*wanted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in wanted for usage in _USAGES})
