"""The serving certificate: loaded again when it changes, but only if the new pair is usable."""

import os
import resource
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from certs.authority import issue, read
from certs.files import Folder, InMemory, UnusableCertificate
from certs.secret import Bundle
from certs.serving import ServingCertificate, client_ca
from tests.certs.test_authority import encrypted_key
from tests.support.authority import issue_ca, issue_leaf
from tests.support.client_certificates import issue_client, replace
from tests.support.log_capture import capture_logs
from tests.support.tls_client import write_certificate_files

NOW, DAY = datetime.now(UTC), timedelta(days=1)
CA = issue_ca(NOW)


def write(folder, leaf=None):
    """A folder with a certificate, its key and its CA."""
    leaf = leaf or issue_leaf(CA, ["localhost"], NOW)
    folder.mkdir(exist_ok=True)
    folder.joinpath("tls.crt").write_bytes(leaf.certificate)
    folder.joinpath("tls.key").write_bytes(leaf.key)
    folder.joinpath("ca.crt").write_bytes(CA.certificate)
    return folder


def test_the_old_context_is_returned_while_another_thread_reloads(tmp_path):
    """A file system that hangs stopped the probes as well."""
    certificate = ServingCertificate(Folder(write(tmp_path)))
    before = certificate.context()
    write(tmp_path)
    with certificate._lock:
        assert certificate.context() is before
    assert certificate.context() is not before


def test_changed_files_of_the_same_mtime_and_size_are_reloaded(tmp_path):
    """As after `cp -p`, or after a `chmod` that makes the files readable."""
    files = [write(tmp_path) / name for name in ("tls.crt", "tls.key")]

    def write_padded():
        leaf = issue_leaf(CA, ["localhost"], NOW)
        for file, content in zip(files, (leaf.certificate, leaf.key), strict=True):
            file.write_bytes(content.ljust(4096, b"\n"))
            os.utime(file, (0, 0))

    write_padded()
    certificate = ServingCertificate(Folder(tmp_path))
    before, ctimes = certificate.context(), [file.stat().st_ctime_ns for file in files]
    while [file.stat().st_ctime_ns for file in files] == ctimes:  # file times advance only every few milliseconds
        write_padded()
    assert certificate.context() is not before


# Expiry and problem

TEN_DAYS = {"leaf": NOW.replace(microsecond=0) + 10 * DAY, "ca": NOW.replace(microsecond=0) + 365 * DAY}
TWENTY_DAYS = TEN_DAYS | {"leaf": NOW.replace(microsecond=0) + 20 * DAY}


def leaf_with_lifetime(days, ca=CA):
    return issue_leaf(ca, ["localhost"], NOW, days * DAY)


@pytest.mark.parametrize("names", [("tls.crt", "tls.key"), ("tls.key", "tls.crt")], ids="-".join)
def test_the_old_pair_is_served_and_described_until_certificate_and_key_have_both_changed(tmp_path, names):
    certificate = ServingCertificate(Folder(write(tmp_path / "served", leaf_with_lifetime(10))))
    before, changed = certificate.context(), write(tmp_path / "changed", leaf_with_lifetime(20))
    mismatch = f"{tmp_path}/served/tls.key: does not match {tmp_path}/served/tls.crt"
    with capture_logs() as lines:
        for name, ends, problem in zip(names, (TEN_DAYS, TWENTY_DAYS), (mismatch, ""), strict=True):
            changed.joinpath(name).rename(tmp_path / "served" / name)
            assert [certificate.context() is before for _ in range(3)] == [ends is TEN_DAYS] * 3
            assert (certificate.expiry_times(), certificate.problem) == (ends, problem)
    assert [line["event"] for line in lines] == [
        "serving certificate unusable, keeping the old one",
        "serving certificate reloaded",
    ]


def test_ends_returns_the_expiry_of_the_ca_that_signed_the_served_leaf(tmp_path):
    certificate = ServingCertificate(Folder(write(tmp_path, leaf_with_lifetime(10))))
    short = issue_ca(NOW, lifetime=30 * DAY)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(short.certificate + CA.certificate)
    assert certificate.expiry_times() == TEN_DAYS
    for content in (short.certificate, b"garbage"):
        ca.write_bytes(content)
        assert certificate.expiry_times() == {"leaf": TEN_DAYS["leaf"]}
    ca.unlink()
    assert certificate.expiry_times() == {"leaf": TEN_DAYS["leaf"]}


def test_a_pair_in_memory_has_no_expiry_and_no_problem_until_the_first_pass_sets_it():
    served = InMemory()
    certificate = ServingCertificate(served)
    assert (certificate.context(), certificate.expiry_times(), certificate.problem) == (None, {}, "")
    assert certificate.ca_bundle() == b""
    with pytest.raises(UnusableCertificate, match="the Secret is not read yet"):
        served.pair()
    served.bundle = Bundle(issue(["localhost"], NOW, 10 * DAY))
    for waited in certificate, ServingCertificate(served):
        assert waited.context()
        assert (waited.expiry_times(), waited.problem) == ({"leaf": TEN_DAYS["leaf"]}, "")
        assert waited.ca_bundle() == served.bundle.serving.certificate


def open_descriptors():
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_a_pair_in_memory_is_loaded_again_only_if_it_changes_and_leaves_no_file():
    first, second = (Bundle(issue(["localhost"], NOW)) for _ in range(2))
    served = InMemory(first)
    descriptors = open_descriptors()
    certificate = ServingCertificate(served)
    before = certificate.context()
    served.bundle = msgspec.structs.replace(first, next=second.serving)
    assert certificate.context() is before
    served.bundle = second
    assert certificate.context() is not before
    assert open_descriptors() == descriptors


def test_a_lack_of_file_descriptors_leaves_the_old_pair_until_the_next_try():
    served = InMemory(Bundle(issue(["localhost"], NOW)))
    certificate = ServingCertificate(served)
    before = certificate.context()
    served.bundle = Bundle(issue(["localhost"], NOW))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        assert certificate.context() is before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert certificate.problem == "the Secret: cannot load the certificate from memory: Too many open files"
    assert certificate.context() is not before
    assert certificate.problem == ""


def test_the_old_pair_is_served_while_a_file_is_missing_and_the_problem_ends_when_it_is_back(tmp_path):
    key, target_file = tmp_path / "tls.key", write(tmp_path).joinpath("tls.key").rename(tmp_path / "kept")
    key.symlink_to(target_file)
    certificate = ServingCertificate(Folder(tmp_path))
    before, missing = certificate.context(), f"{key}: No such file or directory"
    with capture_logs() as lines:
        for target, problem in (("nowhere", missing), ("kept", "")):
            key.unlink()
            key.symlink_to(tmp_path / target)
            assert [certificate.context() for _ in range(3)] == [before] * 3
            assert certificate.problem == problem
    assert [line["reason"] for line in lines] == [missing]


CUT = b"-----BEGIN CERTIFICATE-----\n"
NO_PAIR = ": needs a PEM certificate in tls.crt and its unencrypted PEM private key in tls.key"
UNUSABLE = {
    **{f"{content} in {name}": (name, content, NO_PAIR) for content in (b"", CUT) for name in ("tls.crt", "tls.key")},
    # OpenSSL must not ask for the passphrase on the terminal.
    "an encrypted key": ("tls.key", encrypted_key(issue_leaf(CA, ["localhost"], NOW)), NO_PAIR),
    "a key of another certificate": ("tls.key", issue_leaf(CA, ["localhost"], NOW).key, "/tls.key: does not match "),
    "a directory": ("tls.key", None, "/tls.key: Is a directory"),
}


@pytest.mark.parametrize(("name", "content", "problem"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_file_is_named_in_the_error(tmp_path, name, content, problem):
    file = write(tmp_path) / name
    file.unlink()
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(UnusableCertificate, match=f"^{tmp_path}{problem}"):
        ServingCertificate(Folder(tmp_path))


# The CAs of accepted clients: reloaded when their file changes, but only if the new file is usable


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
    return ServingCertificate(Folder(folder), client_ca=client_ca(file))


def trusted(certificate):
    """The CAs that the context trusts, in PEM."""
    return {ssl.DER_cert_to_PEM_cert(one).encode() for one in certificate.context().get_ca_certs(binary_form=True)}


# Loading


def test_only_a_context_with_a_client_ca_requires_a_client_certificate(certificate, tmp_path):
    assert certificate.context().verify_mode is ssl.CERT_REQUIRED
    assert trusted(certificate) == {OLD.certificate}
    assert ServingCertificate(Folder(tmp_path / "served")).context().verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "contains no PEM certificate"),
        (b"garbage", "contains no PEM certificate"),
        (OLD.certificate[:-60], "contains no PEM certificate"),
        (OLD.certificate + NEW.certificate[:200], "contains an incomplete certificate"),
        (LEAF, "contains no PEM CA certificate"),
        (None, "No such file or directory"),
    ],
    ids=["empty", "garbage", "cut", "cut within the second", "no CA", "no file"],
)
def test_an_unusable_file_is_an_error_at_startup(file, content, problem):
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(UnusableCertificate, match=f"^{file}: {problem}$"):
        client_ca(file)


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


def test_the_client_ca_is_required_of_a_certificate_that_arrives_later(file):
    served = InMemory()
    certificate = ServingCertificate(served, client_ca=client_ca(file))
    assert certificate.context() is None
    assert certificate.problem == ""
    served.bundle = Bundle(issue(["localhost"], NOW))
    assert certificate.context().verify_mode is ssl.CERT_REQUIRED


def test_an_intermediate_ca_is_trusted_without_its_root(certificate, file):
    root = issue_ca(NOW)
    replace(file, issue_client(root, "an intermediate", is_ca=True).certificate)
    assert certificate.context().verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert trusted(certificate)
