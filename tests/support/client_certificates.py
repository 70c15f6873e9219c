"""Client certificates, as an API server presents them to the webhook, and TLS clients that use them."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs import authority
from certs.authority import Issued
from tests.support.authority import signing_key


def issue_client(
    ca: Issued,
    name: str = "kube-apiserver",
    lifetime: timedelta = timedelta(days=1),
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
    *,
    is_ca: bool = False,
) -> Issued:
    """Issue a client certificate. With a negative lifetime, it has expired."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    issuer, issuer_key = authority._load_certificate(ca.certificate), signing_key(ca)
    start = min(now, now + lifetime) - timedelta(minutes=5)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    serial = x509.random_serial_number()
    builder = (
        x509.CertificateBuilder(issuer.subject, subject, key.public_key(), serial, start, now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(builder.sign(issuer_key, SHA256()).public_bytes(Encoding.PEM), private)


def small_certificate() -> bytes:
    """Return a self-signed certificate of 230 bytes: OpenSSL's costliest one, by its bytes."""
    key, name, now = ec.generate_private_key(ec.SECP256R1()), x509.Name([]), datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


def write_client(folder: Path, client: Issued, name: str = "client") -> tuple[Path, Path]:
    """Write a client's certificate and key, and return both paths."""
    files = folder / f"{name}.crt", folder / f"{name}.key"
    for file, content in zip(files, (client.certificate, client.key), strict=True):
        file.write_bytes(content)
    return files


def replace(file: Path, content: bytes) -> None:
    """Replace a file with one rename, as a kubelet does."""
    new = file.with_name(f".{file.name}.new")
    new.write_bytes(content)
    new.replace(file)


def client_context(server_ca: Path, *certificate: Path, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """Return the TLS context of a client that presents this certificate, or none."""
    context = ssl.create_default_context(cafile=str(server_ca))
    if certificate:
        context.load_cert_chain(*certificate)
    if version:
        context.maximum_version = version
    return context
