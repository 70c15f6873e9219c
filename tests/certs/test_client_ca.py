"""The CAs of accepted clients: reloaded when their file changes, but only if the new file is usable."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest

from certs.authority import issue_ca, issue_leaf, read
from certs.files import UnusableCertificate
from certs.serving import ServingCertificate, client_ca
from tests.support.client_certificates import issue_client, replace
from tests.support.log_capture import capture_logs
from tests.support.tls_client import write_certificate_files

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
OLD, NEW = issue_ca(NOW), issue_ca(NOW, lifetime=30 * DAY)
LEAF = issue_leaf(OLD, ["localhost"], NOW).certificate


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "client-ca.crt"
    file.write_bytes(OLD.certificate)
    return file


@pytest.fixture
def certificate(tmp_path, file):
    folder = tmp_path / "served"
    write_certificate_files(folder)
    return ServingCertificate(folder, client_ca=client_ca(file))


def trusted(certificate):
    """The CAs that the context trusts, in PEM."""
    return {ssl.DER_cert_to_PEM_cert(one).encode() for one in certificate.context().get_ca_certs(binary_form=True)}


# Loading


def test_only_a_context_with_a_client_ca_requires_a_client_certificate(certificate, tmp_path):
    assert certificate.context().verify_mode is ssl.CERT_REQUIRED
    assert trusted(certificate) == {OLD.certificate}
    assert ServingCertificate(tmp_path / "served").context().verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "contains no PEM certificate"),
        (b"garbage", "contains no PEM certificate"),
        (OLD.certificate[:-60], "contains no PEM certificate"),
        (OLD.certificate + NEW.certificate[:200], "contains an incomplete certificate"),
        (LEAF, "contains no PEM CA certificate"),
    ],
    ids=["empty", "garbage", "cut", "cut within the second", "no CA"],
)
def test_an_unusable_file_is_an_error_at_startup(file, content, problem):
    file.write_bytes(content)
    with pytest.raises(UnusableCertificate, match=f"^{file}: {problem}$"):
        client_ca(file)


def test_a_missing_file_is_an_error_at_startup(tmp_path):
    with pytest.raises(UnusableCertificate, match=r"client-ca\.crt: No such file or directory"):
        client_ca(tmp_path / "client-ca.crt")


def test_text_keys_and_certificates_of_no_ca_are_ignored(certificate, file):
    replace(file, b"# the CA\n" + LEAF + NEW.key + NEW.certificate)
    assert trusted(certificate) == {NEW.certificate}


# Reloading


def test_an_unusable_file_leaves_the_old_ca_and_is_logged_once(certificate, file):
    before = certificate.context()
    with capture_logs() as lines:
        replace(file, b"garbage")
        assert [certificate.context() for _ in range(3)] == [before] * 3
    assert lines == [
        {
            "event": "client CA unusable, keeping the old one",
            "log_level": "warning",
            "reason": f"{file}: contains no PEM certificate",
        }
    ]
    assert certificate.client_ca.problem == f"{file}: contains no PEM certificate"
    replace(file, NEW.certificate + OLD.certificate)
    assert trusted(certificate) == {NEW.certificate, OLD.certificate}
    assert certificate.expiry_times()["client-ca"] == read(OLD.certificate).not_after  # the one that expires last
    replace(file, NEW.certificate)
    assert trusted(certificate) == {NEW.certificate}
    assert certificate.client_ca.problem == ""


def test_a_renewed_serving_certificate_is_served_beside_an_unusable_client_ca(certificate, file, tmp_path):
    before = certificate.context()
    file.write_bytes(b"garbage")
    write_certificate_files(tmp_path / "served")
    assert certificate.context() is not before
    assert certificate.problem == ""
    assert trusted(certificate) == {OLD.certificate}


def test_a_new_client_ca_waits_for_a_usable_serving_certificate(certificate, file, tmp_path):
    """The server can't recreate the context of the old pair, because its key is no longer in a file."""
    before = certificate.context()
    (tmp_path / "served" / "tls.key").write_bytes(b"garbage")
    replace(file, NEW.certificate)
    assert certificate.context() is before
    assert certificate.problem
    write_certificate_files(tmp_path / "served")
    assert trusted(certificate) == {NEW.certificate}
    assert certificate.problem == ""


def test_the_client_ca_is_required_of_a_certificate_that_arrives_later(file, tmp_path):
    certificate = ServingCertificate(tmp_path / "served", awaited=True, client_ca=client_ca(file))
    assert certificate.context() is None
    assert certificate.problem == ""
    write_certificate_files(tmp_path / "served")
    assert certificate.context().verify_mode is ssl.CERT_REQUIRED


def test_an_intermediate_ca_is_trusted_without_its_root(certificate, file):
    root = issue_ca(NOW)
    replace(file, issue_client(root, "an intermediate", is_ca=True).certificate)
    assert certificate.context().verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert trusted(certificate)
