"""Issue a CA and the serving certificates below it: PEM in, PEM out, and the time is an argument."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = timedelta(days=365)
LEAF_LIFE = timedelta(days=30)
BACKDATED = timedelta(hours=1)  # a verifier whose clock is behind ours would refuse a certificate of this minute

CA_NAME = "kubevirt-scheduler CA"
LEAF_NAME = "kubevirt-scheduler"


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key, both in PEM. `key` is a secret: it stays out of `repr`."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Issued(...)"


def issue_ca(now: datetime) -> Issued:
    """Issue a CA for one year. Two of them have one name; verifiers tell them apart by their key identifiers."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(CA_NAME)
    builder = (
        _builder(name, name, key, now - BACKDATED, now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    return _signed(builder, key, key)


def issue_leaf(ca: Issued, names: Sequence[str], now: datetime) -> Issued:
    """Issue a serving certificate for DNS names and IP addresses: for 30 days, or as long as the CA has left.

    Raises ValueError for an empty list of names, a name that is neither, and a CA that has expired.
    """
    if not names:
        raise ValueError("a serving certificate needs a name")
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    if issuer.not_valid_after_utc <= now:
        raise ValueError("the CA has expired")
    key, issuer_key = ec.generate_private_key(ec.SECP256R1()), _key(ca)
    # Not before the CA either: some verifiers want the one life inside the other.
    start = max(now - BACKDATED, issuer.not_valid_before_utc)
    end = min(now + LEAF_LIFE, issuer.not_valid_after_utc)
    builder = (
        _builder(_name(LEAF_NAME), issuer.subject, key, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return _signed(builder, key, issuer_key)


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
    certificate = builder.sign(issuer_key, SHA256())
    return Issued(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _key(issued: Issued) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(issued.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the CA's key is no elliptic-curve key")
    return key


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
