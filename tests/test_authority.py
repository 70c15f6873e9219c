"""Certificates: each handshake that must succeed beside its twin that must not."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from certs.authority import CA_LIFE, LEAF_LIFE, Issued, issue_ca, issue_leaf

NOW = datetime.now(UTC).replace(microsecond=0)
SERVICE = "webhook.kubevirt-scheduler.svc"
NAMES = (SERVICE, "127.0.0.1", "::1")


def handshake(ca, leaf, name, folder):
    """A TLS handshake in memory, with a client that checks as Python 3.13 and Go do. Raises what the client raises."""
    file = folder / "leaf.pem"
    file.write_bytes(leaf.certificate + leaf.key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(file)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    trusting.load_verify_locations(cadata=ca.certificate.decode())
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up, server_hostname=name)
    server = serving.wrap_bio(up, down, server_side=True)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.version()


@pytest.fixture(scope="module")
def ca():
    return issue_ca(NOW)


def parsed(issued):
    return x509.load_pem_x509_certificate(issued.certificate)


def extension(issued, kind):
    found = parsed(issued).extensions.get_extension_for_class(kind)
    return found.value, found.critical


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_trusts_the_ca_reaches_each_name(ca, name, tmp_path):
    assert handshake(ca, issue_leaf(ca, NAMES, NOW), name, tmp_path) == "TLSv1.3"


@pytest.mark.parametrize("name", ["other.kubevirt-scheduler.svc", "svc", "127.0.0.2", "::2"])
def test_another_name_is_refused(ca, name, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(ca, issue_leaf(ca, NAMES, NOW), name, tmp_path)


def test_another_ca_of_the_same_name_is_refused(ca, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|signature failure"):
        handshake(issue_ca(NOW), issue_leaf(ca, NAMES, NOW), SERVICE, tmp_path)


def test_an_expired_leaf_is_refused(tmp_path):
    ca = issue_ca(NOW - timedelta(days=60))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        handshake(ca, issue_leaf(ca, NAMES, NOW - timedelta(days=31)), SERVICE, tmp_path)


def test_a_leaf_of_the_future_is_refused(ca, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        handshake(ca, issue_leaf(ca, NAMES, NOW + timedelta(hours=2)), SERVICE, tmp_path)


def test_a_client_whose_clock_is_behind_by_less_than_an_hour_is_served(tmp_path):
    ca = issue_ca(NOW + timedelta(minutes=50))
    assert handshake(ca, issue_leaf(ca, NAMES, NOW + timedelta(minutes=50)), SERVICE, tmp_path)


def test_an_expired_ca_is_refused(tmp_path):
    then = NOW - CA_LIFE - timedelta(days=1)
    ca = issue_ca(then)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        handshake(ca, issue_leaf(ca, NAMES, then), SERVICE, tmp_path)


def test_a_leaf_can_not_sign(ca, tmp_path):
    leaf = issue_leaf(ca, NAMES, NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ca, issue_leaf(leaf, NAMES, NOW), SERVICE, tmp_path)


def test_the_ca_lives_for_a_year_and_the_leaf_for_thirty_days_both_from_an_hour_ago(ca):
    leaf = issue_leaf(ca, NAMES, NOW)
    assert parsed(ca).not_valid_before_utc == parsed(leaf).not_valid_before_utc == NOW - timedelta(hours=1)
    assert parsed(ca).not_valid_after_utc == NOW + timedelta(days=365)
    assert parsed(leaf).not_valid_after_utc == NOW + timedelta(days=30)


@pytest.mark.parametrize("left", [timedelta(seconds=1), timedelta(days=3), LEAF_LIFE])
def test_the_leaf_never_outlives_the_ca(ca, left):
    leaf = issue_leaf(ca, NAMES, NOW + CA_LIFE - left)
    assert parsed(leaf).not_valid_after_utc == parsed(ca).not_valid_after_utc


def test_the_leaf_is_never_older_than_the_ca(ca):
    leaf = issue_leaf(ca, NAMES, NOW - timedelta(minutes=30))
    assert parsed(leaf).not_valid_before_utc == parsed(ca).not_valid_before_utc


def test_an_expired_ca_issues_nothing(ca):
    with pytest.raises(ValueError, match="expired"):
        issue_leaf(ca, NAMES, NOW + CA_LIFE)


@pytest.mark.parametrize("names", [(), ("bücher.example",)])
def test_a_leaf_needs_names_that_a_certificate_can_hold(ca, names):
    with pytest.raises(ValueError, match=r"name|A-label"):
        issue_leaf(ca, names, NOW)


def test_both_are_ecdsa_on_p256_with_sha256(ca):
    for issued in (ca, issue_leaf(ca, NAMES, NOW)):
        key = load_pem_private_key(issued.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert isinstance(key.curve, ec.SECP256R1)
        assert isinstance(parsed(issued).signature_hash_algorithm, SHA256)
        assert parsed(issued).public_key() == key.public_key()


def test_both_say_what_they_are_for(ca):
    leaf = issue_leaf(ca, NAMES, NOW)
    assert extension(ca, x509.BasicConstraints) == (x509.BasicConstraints(ca=True, path_length=0), True)
    assert extension(leaf, x509.BasicConstraints) == (x509.BasicConstraints(ca=False, path_length=None), True)
    assert extension(ca, x509.KeyUsage)[0].key_cert_sign
    assert extension(leaf, x509.KeyUsage)[0].digital_signature
    assert not extension(leaf, x509.KeyUsage)[0].key_cert_sign
    assert extension(leaf, x509.ExtendedKeyUsage)[0] == x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])


def test_the_leaf_holds_the_names_that_were_given(ca):
    names, _ = extension(issue_leaf(ca, NAMES, NOW), x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == [SERVICE]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1"), ip_address("::1")]


def test_the_leaf_names_the_key_that_signed_it(ca):
    signer, _ = extension(issue_leaf(ca, NAMES, NOW), x509.AuthorityKeyIdentifier)
    assert signer.key_identifier == extension(ca, x509.SubjectKeyIdentifier)[0].digest


def test_no_two_have_a_key_or_a_serial_number_in_common(ca):
    first, second = issue_leaf(ca, NAMES, NOW), issue_leaf(ca, NAMES, NOW)
    assert first.key != second.key
    assert len({parsed(issued).serial_number for issued in (ca, first, second)}) == 3


def test_the_key_does_not_show_when_a_certificate_is_printed(ca):
    assert "PRIVATE" not in repr(ca)


def test_a_ca_with_a_key_of_another_kind_issues_nothing(ca):
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(TypeError, match="no elliptic-curve key"):
        issue_leaf(Issued(ca.certificate, pem), NAMES, NOW)
