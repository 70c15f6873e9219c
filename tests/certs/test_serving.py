"""The certificate that is shown: followed when it changes, and only when it can be used."""

import os
import resource
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from structlog.testing import capture_logs

from certs.authority import issue_ca, issue_leaf
from certs.serving import (
    ServingCertificate,
    UnusableCertificate,
    authority_of,
    load_context,
    self_signed_folder,
    temporary_folder,
)
from tests.support.own_process import alone

NOW = datetime.now(UTC)
CA = issue_ca(NOW)


def write(folder, leaf=None):
    """A folder with a certificate and its key."""
    leaf = leaf or issue_leaf(CA, ["localhost"], NOW)
    folder.mkdir(exist_ok=True)
    folder.joinpath("tls.crt").write_bytes(leaf.certificate)
    folder.joinpath("tls.key").write_bytes(leaf.key)
    folder.joinpath("ca.crt").write_bytes(CA.certificate)
    return folder


def test_one_context_serves_while_the_files_stay_as_they_are(tmp_path):
    certificate = ServingCertificate(write(tmp_path))
    assert certificate.context() is certificate.context()


def test_files_that_were_written_anew_are_read_anew(tmp_path):
    certificate = ServingCertificate(write(tmp_path))
    before = certificate.context()
    write(tmp_path)
    after = certificate.context()
    assert after is not before
    assert certificate.context() is after


def test_files_of_the_same_time_and_size_are_read_anew(tmp_path):
    """As after `cp -p`, or when somebody has made them readable at last."""
    files = [write(tmp_path) / name for name in ("tls.crt", "tls.key")]

    def put():
        leaf = issue_leaf(CA, ["localhost"], NOW)
        for file, content in zip(files, (leaf.certificate, leaf.key), strict=True):
            file.write_bytes(content.ljust(4096, b"\n"))
            os.utime(file, (0, 0))

    put()
    certificate = ServingCertificate(tmp_path)
    before, then = certificate.context(), [file.stat().st_ctime_ns for file in files]
    while [file.stat().st_ctime_ns for file in files] == then:  # the kernel's clock ticks every few milliseconds
        put()
    assert certificate.context() is not before


def test_a_folder_that_is_swapped_as_kubernetes_does_it_is_read_anew(tmp_path):
    link, served = tmp_path / "..data", tmp_path / "served"
    link.symlink_to(write(tmp_path / "first"))
    served.mkdir()
    for name in ("tls.crt", "tls.key", "ca.crt"):
        served.joinpath(name).symlink_to(link / name)
    certificate = ServingCertificate(served)
    before = certificate.context()
    tmp_path.joinpath("next").symlink_to(write(tmp_path / "second"))
    tmp_path.joinpath("next").rename(link)
    assert certificate.context() is not before


@pytest.mark.parametrize("name", ["tls.crt", "tls.key"])
def test_half_a_change_leaves_the_old_pair_until_the_other_half_is_there(tmp_path, name):
    certificate = ServingCertificate(write(tmp_path / "served"))
    before = certificate.context()
    changed = write(tmp_path / "changed")
    with capture_logs() as lines:
        changed.joinpath(name).rename(tmp_path / "served" / name)
        assert [certificate.context() for _ in range(3)] == [before] * 3
        [other] = {"tls.crt", "tls.key"} - {name}
        changed.joinpath(other).rename(tmp_path / "served" / other)
        assert certificate.context() is not before
    assert [line["event"] for line in lines] == [
        "the serving certificate stays as it was",
        "the serving certificate was read anew",
    ]


@pytest.mark.parametrize("name", ["tls.crt", "tls.key"])
def test_a_file_that_goes_away_leaves_the_old_pair(tmp_path, name):
    certificate = ServingCertificate(write(tmp_path))
    before = certificate.context()
    tmp_path.joinpath(name).unlink()
    with capture_logs() as lines:
        assert [certificate.context() for _ in range(3)] == [before] * 3
    assert [line["reason"] for line in lines] == [f"{tmp_path / name}: No such file or directory"]


# What is said of what is served

DAY = timedelta(days=1)
TEN_DAYS = {"leaf": NOW.replace(microsecond=0) + 10 * DAY, "ca": NOW.replace(microsecond=0) + 365 * DAY}
TWENTY_DAYS = TEN_DAYS | {"leaf": NOW.replace(microsecond=0) + 20 * DAY}


def for_days(days, ca=CA):
    return issue_leaf(ca, ["localhost"], NOW, days * DAY)


def test_the_ends_are_those_of_what_is_served_and_not_of_files_that_can_not_be(tmp_path):
    certificate = ServingCertificate(write(tmp_path / "served", for_days(10)))
    changed = write(tmp_path / "changed", for_days(20))
    for name, ends, problem in (
        ("tls.crt", TEN_DAYS, f"{tmp_path}/served/tls.key: is not the key of {tmp_path}/served/tls.crt"),
        ("tls.key", TWENTY_DAYS, ""),
    ):
        changed.joinpath(name).rename(tmp_path / "served" / name)
        certificate.context()
        assert (certificate.ends(), certificate.problem) == (ends, problem)


def test_the_end_of_the_ca_is_that_of_the_one_that_signed_what_is_served(tmp_path):
    certificate, short = ServingCertificate(write(tmp_path, for_days(10))), issue_ca(NOW, life=30 * DAY)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(short.certificate + CA.certificate)
    assert certificate.ends() == TEN_DAYS
    for content in (short.certificate, b"garbage"):
        ca.write_bytes(content)
        assert certificate.ends() == {"leaf": TEN_DAYS["leaf"]}
    ca.unlink()
    assert certificate.ends() == {"leaf": TEN_DAYS["leaf"]}


def test_what_is_still_to_come_has_no_end_and_is_no_problem(tmp_path):
    certificate = ServingCertificate(tmp_path, awaited=True)
    assert (certificate.context(), certificate.ends(), certificate.problem) == (None, {}, "")
    write(tmp_path, for_days(10))
    assert certificate.context()
    assert (certificate.ends(), certificate.problem) == (TEN_DAYS, "")


def test_a_problem_is_over_when_the_files_that_are_served_are_back(tmp_path):
    key, kept = tmp_path / "tls.key", write(tmp_path).joinpath("tls.key").rename(tmp_path / "kept")
    key.symlink_to(kept)
    certificate = ServingCertificate(tmp_path)
    for target, problem in (("nowhere", f"{key}: No such file or directory"), ("kept", "")):
        key.unlink()
        key.symlink_to(tmp_path / target)
        assert certificate.context()
        assert certificate.problem == problem


def after_no_file_was_left(folder):
    certificate, (soft, hard) = ServingCertificate(folder), resource.getrlimit(resource.RLIMIT_NOFILE)
    before = certificate.context()
    write(folder)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    assert certificate.context() is before
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert certificate.context() is not before


def test_a_pair_that_could_not_be_read_for_a_moment_is_read_in_the_next(tmp_path):
    alone(after_no_file_was_left, write(tmp_path))


def test_nothing_older_than_tls_1_2_is_spoken(tmp_path):
    assert load_context(write(tmp_path)).minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("name", ["tls.crt", "tls.key"])
@pytest.mark.parametrize("content", [b"", b"nothing", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\n"])
def test_a_file_without_what_it_should_hold_is_named(tmp_path, name, content):
    write(tmp_path).joinpath(name).write_bytes(content)
    with pytest.raises(UnusableCertificate, match=f"^{tmp_path / name}: holds no "):
        load_context(tmp_path)


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    write(tmp_path).joinpath("tls.key").unlink()
    tmp_path.joinpath("tls.key").mkdir()
    with pytest.raises(UnusableCertificate, match=f"^{tmp_path / 'tls.key'}: Is a directory"):
        load_context(tmp_path)


def test_a_key_of_another_certificate_is_named(tmp_path):
    write(tmp_path).joinpath("tls.key").write_bytes(issue_leaf(CA, ["localhost"], NOW).key)
    with pytest.raises(UnusableCertificate, match=f"^{tmp_path / 'tls.key'}: is not the key of {tmp_path / 'tls.crt'}"):
        load_context(tmp_path)


def test_a_key_with_a_passphrase_is_named_and_nobody_is_asked_for_it(tmp_path):
    key = load_pem_private_key(write(tmp_path).joinpath("tls.key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    tmp_path.joinpath("tls.key").write_bytes(locked)
    with pytest.raises(UnusableCertificate, match="holds no private key in PEM, free of a passphrase"):
        load_context(tmp_path)


def test_the_ca_of_a_folder_is_found(tmp_path):
    assert authority_of(write(tmp_path)) == tmp_path / "ca.crt"


@pytest.mark.parametrize("content", [None, b"", b"nothing"])
def test_a_ca_that_can_not_be_used_is_named(tmp_path, content):
    ca = write(tmp_path) / "ca.crt"
    ca.unlink() if content is None else ca.write_bytes(content)
    with pytest.raises(UnusableCertificate, match=f"^{ca}: "):
        authority_of(tmp_path)


def test_a_certificate_for_one_run_is_for_its_user_alone_and_goes_with_the_run():
    with self_signed_folder(["localhost"], NOW) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()} == dict.fromkeys(
            ("ca.crt", "tls.crt", "tls.key"), 0o600
        )
        assert load_context(folder)
        assert authority_of(folder)
    assert not folder.exists()


def test_a_certificate_for_one_run_lives_a_year_for_nobody_renews_it():
    with self_signed_folder(["localhost"], NOW) as folder:
        assert ServingCertificate(folder).ends() == dict.fromkeys(("leaf", "ca"), TEN_DAYS["ca"])


def told_by(folder_of):
    with capture_logs() as lines, folder_of as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        place = folder.parent
    assert not folder.exists()
    return place, [(line["log_level"], line["event"], line["advice"]) for line in lines]


def test_keys_are_kept_in_memory_without_a_word_and_on_disk_with_one(tmp_path):
    memory, disk, nowhere = tmp_path / "memory", tmp_path / "disk", tmp_path / "nowhere"
    memory.mkdir()
    disk.mkdir()
    assert told_by(temporary_folder(str(memory), str(disk))) == (memory, [])
    advice = f"make {nowhere} a writable folder in memory, as a container runtime does"
    told = [("warning", "keys are on disk while this runs", advice)]
    assert told_by(temporary_folder(str(nowhere), str(disk))) == (disk, told)


def test_a_memory_folder_in_which_nothing_can_be_made_is_told_as_well(tmp_path):
    no_folder = tmp_path / "file"
    no_folder.touch()  # may be written, and yet nothing comes into it: as where it is full
    place, told = told_by(temporary_folder(str(no_folder), str(tmp_path)))
    assert place == tmp_path
    assert [level for level, _, _ in told] == ["warning"]


def test_where_nothing_can_be_written_it_is_said_in_one_line_what_to_do(tmp_path):
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(UnusableCertificate) as said, temporary_folder(nowhere, nowhere):
        pass
    assert str(said.value) == (
        "there is no folder for keys: No such file or directory; "
        f"make {nowhere} a writable folder in memory, as a container runtime does"
    )


def test_a_run_that_fails_leaves_nothing_behind():
    folders = []

    def fail():
        with self_signed_folder(["localhost"], NOW) as folder:
            folders.append(folder)
            raise SystemExit

    with pytest.raises(SystemExit):
        fail()
    assert not folders[0].exists()


# In a process of its own: this one has other tests' threads, and a fork of those may hang (of which 3.12 warns).
FORKING = """
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


def test_a_forked_process_that_ends_leaves_the_folder_to_its_maker():
    done = subprocess.run([sys.executable, "-W", "error", "-c", FORKING], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
