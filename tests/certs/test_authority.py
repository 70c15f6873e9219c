"""Certificates: each handshake that must succeed beside its twin that must not."""

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from certs.authority import (
    CA_LIFE,
    LEAF_LIFE,
    BadCertificate,
    Issued,
    fits,
    issue_ca,
    issue_leaf,
    read,
    signed_by,
    split,
)

NOW = datetime.now(UTC).replace(microsecond=0)
SERVICE = "webhook.kubevirt-scheduler.svc"
NAMES = (SERVICE, "127.0.0.1", "::1")
SERVICES = (SERVICE, f"{SERVICE}.cluster.local")


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
    with pytest.raises(ValueError, match=r"name"):
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
    with pytest.raises(BadCertificate, match="no elliptic-curve key"):
        issue_leaf(Issued(ca.certificate, other_key()), NAMES, NOW)


def other_key():
    key = ed25519.Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def issued_for(purpose, ca):
    """A leaf like ours, but for another purpose."""
    key, issuer = ec.generate_private_key(ec.SECP256R1()), parsed(ca)
    extensions = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([purpose]), False),
        (x509.SubjectAlternativeName([x509.DNSName(SERVICE)]), False),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), False),
    ]
    builder = x509.CertificateBuilder(
        issuer.subject,
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "other")]),
        key.public_key(),
        7,
        NOW,
        NOW + LEAF_LIFE,
        extensions=[],
    )
    for value, critical in extensions:
        builder = builder.add_extension(value, critical)
    signed = builder.sign(load_pem_private_key(ca.key, None), SHA256())
    return Issued(
        signed.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )


def openssl(ca, leaf, folder, *, name=SERVICE, at=NOW):
    """What OpenSSL's own verifier says, as strict as it can be."""
    for file, content in (("ca", ca.certificate), ("leaf", leaf.certificate)):
        folder.joinpath(file).write_bytes(content)
    strict = ["-x509_strict", "-purpose", "sslserver", "-attime", str(round(at.timestamp()))]
    command = ["openssl", "verify", *strict, "-verify_hostname", name, "-CAfile", folder / "ca", folder / "leaf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "OK" if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("names", [NAMES, SERVICES], ids=["any names", "services"])
def test_openssl_finds_nothing_wrong(names, tmp_path):
    ca = issue_ca(NOW, names)
    assert openssl(ca, issue_leaf(ca, names, NOW), tmp_path) == "OK"


REFUSED = {
    "another name": (lambda ca, leaf: (ca, leaf), {"name": "other.kubevirt-scheduler.svc"}, "ostname mismatch"),
    "an expired leaf": (lambda ca, leaf: (ca, leaf), {"at": NOW + LEAF_LIFE}, "certificate has expired"),
    "a leaf of the future": (
        lambda ca, leaf: (ca, leaf),
        {"at": NOW - timedelta(hours=1, seconds=1)},
        "certificate is not yet valid",
    ),
    "another CA": (lambda _, leaf: (issue_ca(NOW, SERVICES), leaf), {}, "unable to get local issuer"),
    "a client's certificate": (
        lambda ca, _: (ca, issued_for(x509.ExtendedKeyUsageOID.CLIENT_AUTH, ca)),
        {},
        r"un(suitable|supported) certificate purpose",
    ),
}


@pytest.mark.parametrize(("change", "how", "complaint"), REFUSED.values(), ids=REFUSED)
def test_openssl_refuses(change, how, complaint, tmp_path):
    ca = issue_ca(NOW, SERVICES)
    shown = change(ca, issue_leaf(ca, SERVICES, NOW))
    with pytest.raises(AssertionError, match=complaint):
        assert openssl(*shown, tmp_path, **how) == "OK"


def test_a_client_certificate_is_no_server_certificate(ca, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(ca, issued_for(x509.ExtendedKeyUsageOID.CLIENT_AUTH, ca), SERVICE, tmp_path)


def test_a_server_certificate_of_the_same_making_is_one(ca, tmp_path):
    assert handshake(ca, issued_for(x509.ExtendedKeyUsageOID.SERVER_AUTH, ca), SERVICE, tmp_path)


@pytest.mark.parametrize("name", SERVICES)
def test_a_ca_of_services_signs_for_their_namespace(name, tmp_path):
    ca = issue_ca(NOW, SERVICES)
    assert extension(ca, x509.NameConstraints)[1]
    assert handshake(ca, issue_leaf(ca, SERVICES, NOW), name, tmp_path)


@pytest.mark.parametrize("name", ["webhook.kube-system.svc", "example.com", "127.0.0.1", "svc"])
def test_and_for_nothing_else(name, tmp_path):
    ca = issue_ca(NOW, SERVICES)
    assert not read(ca.certificate).permits([name])
    with pytest.raises(ssl.SSLCertVerificationError, match=r"(permitted|excluded) subtree"):
        handshake(ca, issue_leaf(ca, [SERVICE, name], NOW), name, tmp_path)


@pytest.mark.parametrize("names", [(), NAMES, ("localhost",), ("a.svc",), (SERVICE, "example.com")])
def test_a_ca_of_other_names_is_free(names):
    ca = issue_ca(NOW, names)
    assert read(ca.certificate).permitted == ()
    assert read(ca.certificate).permits(["example.com", "127.0.0.1"])


def test_lives_can_be_chosen(ca):
    short = issue_ca(NOW, life=timedelta(minutes=5))
    assert read(short.certificate).not_after == NOW + timedelta(minutes=5)
    assert read(issue_leaf(ca, NAMES, NOW, timedelta(minutes=1)).certificate).not_after == NOW + timedelta(minutes=1)


def test_what_was_issued_is_read_back(ca):
    leaf = issue_leaf(ca, NAMES, NOW)
    found, authority = read(leaf.certificate), read(ca.certificate)
    assert (found.subject, found.names, found.is_ca) == ("CN=kubevirt-scheduler", NAMES, False)
    assert (found.not_before, found.not_after) == (NOW - timedelta(hours=1), NOW + LEAF_LIFE)
    assert found.serial == parsed(leaf).serial_number
    assert found.fingerprint == parsed(leaf).fingerprint(SHA256()).hex()
    assert (authority.subject, authority.names, authority.is_ca) == ("CN=kubevirt-scheduler CA", (), True)
    assert found.issuer_id == authority.key_id == authority.issuer_id != found.key_id


def test_a_certificate_is_valid_from_its_first_moment_to_before_its_last(ca):
    one = read(ca.certificate)
    tick = timedelta(seconds=1)
    moments = (one.not_before - tick, one.not_before, one.not_after - tick, one.not_after)
    assert [one.is_valid(moment) for moment in moments] == [False, True, True, False]


def test_a_key_fits_its_own_certificate_alone(ca):
    leaf = issue_leaf(ca, NAMES, NOW)
    assert fits(ca)
    assert fits(leaf)
    assert not fits(Issued(leaf.certificate, ca.key))
    assert not fits(Issued(leaf.certificate, other_key()))


def test_a_leaf_was_signed_by_its_own_ca_alone(ca):
    leaf = issue_leaf(ca, NAMES, NOW)
    assert signed_by(leaf.certificate, ca.certificate)
    assert not signed_by(leaf.certificate, issue_ca(NOW).certificate)  # of the same name
    assert not signed_by(leaf.certificate, leaf.certificate)


def test_a_bundle_is_split_into_its_certificates(ca):
    other = issue_ca(NOW)
    assert split(b"a comment\n" + other.certificate + b"\n\n" + ca.certificate) == (other.certificate, ca.certificate)


@pytest.mark.parametrize(
    "pem", [b"", b"garbage", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_certificate_is_told_in_one_line(ca, pem):
    for question in (read, split, lambda it: signed_by(it, ca.certificate), lambda it: fits(Issued(it, ca.key))):
        with pytest.raises(BadCertificate, match=r"^holds no certificate in PEM$"):
            question(pem)


def test_a_certificate_with_extensions_that_are_none_is_told_in_one_line(ca):
    key = load_pem_private_key(ca.key, None)
    builder = x509.CertificateBuilder(
        x509.Name([]), x509.Name([]), key.public_key(), 7, NOW, NOW + LEAF_LIFE, extensions=[]
    )
    strange = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\xff")
    pem = builder.add_extension(strange, critical=False).sign(key, SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(BadCertificate, match=r"^holds a certificate that can't be read$"):
        read(pem)


def locked(issued):
    key = load_pem_private_key(issued.key, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))


@pytest.mark.parametrize("key", [lambda _: b"", lambda _: b"garbage", locked], ids=["empty", "garbage", "locked"])
def test_what_is_no_key_is_told_in_one_line(ca, key):
    with pytest.raises(BadCertificate, match=r"^holds no private key in PEM, free of a passphrase$"):
        fits(Issued(ca.certificate, key(ca)))
