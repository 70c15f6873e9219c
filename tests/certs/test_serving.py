"""The serving certificate: reloaded when its files change, but only if the new files are usable."""

import os
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from threading import Thread

import pytest

from certs.authority import issue_ca, issue_leaf, read
from certs.files import UnusableCertificate
from certs.serving import (
    ServingCertificate,
    client_ca,
    load_context,
    self_signed_folder,
    temporary_folder,
)
from tests.certs.test_authority import encrypted_key
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
    certificate = ServingCertificate(write(tmp_path))
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
    certificate = ServingCertificate(tmp_path)
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
    certificate = ServingCertificate(write(tmp_path / "served", leaf_with_lifetime(10)))
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
    certificate, short = ServingCertificate(write(tmp_path, leaf_with_lifetime(10))), issue_ca(NOW, lifetime=30 * DAY)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(short.certificate + CA.certificate)
    assert certificate.expiry_times() == TEN_DAYS
    for content in (short.certificate, b"garbage"):
        ca.write_bytes(content)
        assert certificate.expiry_times() == {"leaf": TEN_DAYS["leaf"]}
    ca.unlink()
    assert certificate.expiry_times() == {"leaf": TEN_DAYS["leaf"]}


def test_awaited_files_have_no_expiry_and_no_problem_until_they_exist(tmp_path):
    certificate = ServingCertificate(tmp_path, awaited=True)
    assert (certificate.context(), certificate.expiry_times(), certificate.problem) == (None, {}, "")
    write(tmp_path, leaf_with_lifetime(10))
    for waited in certificate, ServingCertificate(tmp_path, awaited=True):
        assert waited.context()
        assert (waited.expiry_times(), waited.problem) == (TEN_DAYS, "")


def test_the_old_pair_is_served_while_a_file_is_missing_and_the_problem_ends_when_it_is_back(tmp_path):
    key, target_file = tmp_path / "tls.key", write(tmp_path).joinpath("tls.key").rename(tmp_path / "kept")
    key.symlink_to(target_file)
    certificate = ServingCertificate(tmp_path)
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
        load_context(tmp_path)


def test_a_file_that_is_removed_while_it_is_loaded_leaves_the_old_pair(tmp_path):
    """OpenSSL opens the files again after they were read."""
    write_certificate_files(tmp_path)
    certificate = ServingCertificate(tmp_path)
    old, key = certificate.context(), (pipe := tmp_path / "tls.key").read_bytes()

    def write_and_remove() -> None:
        with pipe.open("wb") as opened:  # waits for the reader
            pipe.unlink()
            opened.write(key)

    pipe.unlink()
    os.mkfifo(pipe)
    (writer := Thread(target=write_and_remove)).start()
    assert certificate.context() is old
    writer.join()
    assert certificate.problem.startswith(f"{tmp_path}: ")


def test_a_self_signed_folder_is_private_valid_for_a_year_and_removed_at_the_end():
    with self_signed_folder(["localhost"], NOW) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()} == dict.fromkeys(
            ("ca.crt", "tls.crt", "tls.key"), 0o600
        )
        assert ServingCertificate(folder).expiry_times() == dict.fromkeys(("leaf", "ca"), TEN_DAYS["ca"])
    assert not folder.exists()


def folder_and_warnings(folder_context):
    with capture_logs() as lines, folder_context as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        parent = folder.parent
    assert not folder.exists()
    return parent, [(line["log_level"], line["event"], line["advice"]) for line in lines]


def test_keys_in_memory_log_nothing_and_keys_on_disk_log_a_warning(tmp_path):
    memory, disk, nowhere = tmp_path / "memory", tmp_path / "disk", tmp_path / "nowhere"
    memory.mkdir()
    disk.mkdir()
    assert folder_and_warnings(temporary_folder(str(memory), str(disk))) == (memory, [])
    advice = f"mount writable memory at {nowhere}, as container runtimes do"
    warnings = [("warning", "private keys are on disk", advice)]
    assert folder_and_warnings(temporary_folder(str(nowhere), str(disk))) == (disk, warnings)
    full = tmp_path / "full"
    full.touch()  # writable, but mkdtemp fails in it, as in a full folder
    assert folder_and_warnings(temporary_folder(str(full), str(disk)))[0] == disk


def test_no_writable_folder_raises_a_one_line_error_with_advice(tmp_path):
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(UnusableCertificate) as raised, temporary_folder(nowhere, nowhere):
        pass
    assert str(raised.value) == (
        f"cannot create a folder for private keys; mount writable memory at {nowhere}, as container runtimes do"
    )


KILLED_WITH_KEYS = """
import os, signal, sys
from certs.serving import temporary_folder
with temporary_folder(sys.argv[1]) as folder:
    (folder / "tls.key").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_start_removes_the_keys_of_a_killed_process_and_no_others(tmp_path):
    with temporary_folder(str(tmp_path)) as live:
        (live / "tls.key").touch()
        (tmp_path / "another program").mkdir()
        subprocess.run([sys.executable, "-c", KILLED_WITH_KEYS, tmp_path], check=False)
        [killed] = [key for key in tmp_path.glob("*/tls.key") if key.parent != live]
        with temporary_folder(str(tmp_path)) as newest:
            assert {path.name for path in tmp_path.iterdir()} == {live.name, newest.name, "another program"}
        assert not killed.exists()
        assert (live / "tls.key").exists()


# Runs in a separate process: this one has threads of other tests, and a fork of those may hang (Python 3.12 warns).
FORK_PROGRAM = """
import os
from datetime import UTC, datetime
from certs.serving import self_signed_folder

making = self_signed_folder(["localhost"], datetime.now(UTC))
folder = making.__enter__()
if (child := os.fork()) == 0:
    making.__exit__(None, None, None)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert folder.exists()
making.__exit__(None, None, None)
assert not folder.exists()
"""


def test_a_forked_process_does_not_remove_the_folder_of_its_parent():
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK_PROGRAM], check=False, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")


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
