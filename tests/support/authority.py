"""Issue a CA and its serving certificates, as cert-manager, an operator and release 0.1 do."""

from collections.abc import Sequence
from datetime import datetime, timedelta

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

from certs import authority
from certs.authority import BACKDATED, LIFETIME, Issued
from certs.secret import CA_LIFETIME


def issue_ca(now: datetime, lifetime: timedelta = CA_LIFETIME) -> Issued:
    """Issue a self-signed CA."""
    name, key = _name("kubevirt-scheduler CA"), ec.generate_private_key(ec.SECP256R1())
    return _issue(x509.CertificateBuilder(name, name), key, key, (now - BACKDATED, now + lifetime), is_ca=True)


def issue_leaf(ca: Issued, names: Sequence[str], now: datetime, lifetime: timedelta = LIFETIME) -> Issued:
    """Issue a serving certificate for DNS names and IP addresses. It expires with its CA at the latest."""
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    validity = max(now - BACKDATED, issuer.not_valid_before_utc), min(now + lifetime, issuer.not_valid_after_utc)
    builder = (
        x509.CertificateBuilder(issuer.subject, _name("kubevirt-scheduler"))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(authority._general_name, names))), critical=False)
    )
    return _issue(builder, ec.generate_private_key(ec.SECP256R1()), signing_key(ca), validity, is_ca=False)


def signing_key(ca: Issued) -> ec.EllipticCurvePrivateKey:
    """Return the key of a CA."""
    key = load_pem_private_key(ca.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _issue(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    validity: tuple[datetime, datetime],
    *,
    is_ca: bool,
) -> Issued:
    usage = x509.KeyUsage(not is_ca, False, False, False, False, is_ca, is_ca, False, False)
    certificate = (
        builder.public_key(key.public_key())
        .not_valid_before(validity[0])
        .not_valid_after(validity[1])
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(is_ca, 0 if is_ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(certificate.public_bytes(Encoding.PEM), private)
