"""Issuing and reading certificates, and their names. Each accepted handshake has a rejected counterpart."""

import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from certs.authority import (
    BACKDATED,
    LIFETIME,
    BadCertificate,
    Issued,
    canonical_names,
    issue,
    key_matches,
    read,
    signed_by,
    split,
)

NOW = datetime.now(UTC).replace(microsecond=0)
SERVICE = "webhook.kubevirt-scheduler.svc"
NAMES = (SERVICE, "127.0.0.1", "::1")


def handshake(server_context, ca_bundle, name):
    """Do a TLS handshake in memory, with a client as strict as Python 3.13 and Go. Raises the client's error."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    client_context.load_verify_locations(cadata=ca_bundle.decode())
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(down, up, server_hostname=name)
    server = server_context.wrap_bio(up, down, server_side=True)
    for side in (client, server) * 3:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.version()


def handshake_with(issued, trusted, name, folder):
    """Do a handshake with a server that has this pair, and a client that trusts these certificates."""
    folder.joinpath("pair.pem").write_bytes(issued.certificate + issued.key)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / "pair.pem")
    return handshake(server_context, b"".join(one.certificate for one in trusted), name)


@pytest.fixture(scope="module")
def issued():
    return issue(NAMES, NOW)


def load(issued):
    return x509.load_pem_x509_certificate(issued.certificate)


def extension_of(issued, kind):
    found = load(issued).extensions.get_extension_for_class(kind)
    return found.value, found.critical


def test_a_client_that_trusts_the_certificate_accepts_each_of_its_names_and_no_other(issued, tmp_path):
    for name in NAMES:
        assert handshake_with(issued, [issued], name, tmp_path) == "TLSv1.3"
    for name in "other.kubevirt-scheduler.svc", "svc", "127.0.0.2", "::2":
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            handshake_with(issued, [issued], name, tmp_path)


def test_a_client_accepts_each_of_the_certificates_that_it_trusts_and_no_other(issued, tmp_path):
    others = [issue(NAMES, NOW) for _ in range(2)]  # of the same subject
    for trusted in [issued, *others], [*others, issued]:
        assert handshake_with(issued, trusted, SERVICE, tmp_path) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|signature failure"):
        handshake_with(issued, others, SERVICE, tmp_path)


def test_an_issued_certificate_has_its_own_key_signs_itself_and_is_valid_for_30_days(issued):
    assert extension_of(issued, x509.BasicConstraints) == (x509.BasicConstraints(ca=True, path_length=0), True)
    assert extension_of(issued, x509.KeyUsage)[0].digital_signature
    assert extension_of(issued, x509.KeyUsage)[0].key_cert_sign
    assert extension_of(issued, x509.ExtendedKeyUsage)[0] == x509.ExtendedKeyUsage(
        [x509.ExtendedKeyUsageOID.SERVER_AUTH]
    )
    other = issue(NAMES, NOW)
    assert key_matches(issued)
    assert not key_matches(Issued(issued.certificate, other.key))
    assert signed_by(issued.certificate, issued.certificate)
    assert not signed_by(issued.certificate, other.certificate)  # same subject
    found = read(issued.certificate)
    assert (found.subject, found.names, found.is_ca) == ("CN=kubevirt-scheduler", NAMES, True)
    assert (found.not_before, found.not_after) == (NOW - BACKDATED, NOW + LIFETIME)
    assert found.fingerprint == load(issued).fingerprint(SHA256()).hex()
    with pytest.raises(BadCertificate, match="needs a name"):
        issue((), NOW)


def test_validity_includes_not_before_and_excludes_not_after(issued):
    certificate, tick = read(issued.certificate), timedelta(seconds=1)
    for moment in certificate.not_before, certificate.not_after - tick:
        assert certificate.is_valid(moment)
    for moment in certificate.not_before - tick, certificate.not_after:
        assert not certificate.is_valid(moment)


@pytest.mark.parametrize(
    "pem", [b"", b"garbage", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_input_that_is_not_a_certificate_raises_a_one_line_error(issued, pem):
    for question in (
        read,
        split,
        lambda pem: signed_by(pem, issued.certificate),
        lambda pem: key_matches(Issued(pem, issued.key)),
    ):
        with pytest.raises(BadCertificate, match=r"^contains no PEM certificate$"):
            question(pem)


def test_a_certificate_with_malformed_extensions_raises_a_one_line_error(issued):
    key = load_pem_private_key(issued.key, None)
    builder = x509.CertificateBuilder(
        x509.Name([]), x509.Name([]), key.public_key(), 7, NOW, NOW + LIFETIME, extensions=[]
    )
    malformed = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\xff")
    pem = builder.add_extension(malformed, critical=False).sign(key, SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(BadCertificate, match=r"^contains an unreadable certificate$"):
        read(pem)


def encrypted_key(issued):
    key = load_pem_private_key(issued.key, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))


@pytest.mark.parametrize(
    "key", [lambda _: b"", lambda _: b"garbage", encrypted_key], ids=["empty", "garbage", "encrypted"]
)
def test_input_that_is_not_a_usable_key_raises_a_one_line_error(issued, key):
    with pytest.raises(BadCertificate, match=r"^contains no unencrypted PEM private key$"):
        key_matches(Issued(issued.certificate, key(issued)))


def test_canonical_names_are_normalized_and_unique():
    assert canonical_names(("A.ns.svc", "a.ns.svc", "0:0::1")) == ("a.ns.svc", "::1")
    for name in "bücher.example", "https://a.ns.svc", "a.ns.svc:443", "fe80::1%eth0", "10.0.0.0/8", "a.ns.svc\n", "":
        with pytest.raises(BadCertificate, match="neither a DNS name nor an IP address"):
            canonical_names((name,))
