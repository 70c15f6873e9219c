"""Read and write the folder of served files: `tls.crt`, `tls.key` and `ca.crt`, and detect their changes."""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from certs.authority import BadCertificate, Issued, key_matches, read, signed_by, split, trust_anchor
from certs.secret import CA, CERTIFICATE, KEY, Bundle, Cause, CertificateError


class UnusableCertificate(CertificateError):
    """A file that can't be used. The message is one line that names the file."""

    def __init__(self, text: str) -> None:
        super().__init__(Cause.FOLDER, text)


def read_file(file: Path) -> bytes:
    """Return the content of a file. Raises UnusableCertificate."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise UnusableCertificate(f"{file}: {error.strerror}") from None


def identity(file: str) -> tuple[int, ...]:
    """Return a value that differs after each change of a file; an empty tuple if the file is missing."""
    try:
        status = os.stat(file)  # noqa: PTH116 (half the time of a Path's)
    except OSError:
        return ()
    # The ctime detects a `chmod` that makes a file readable, and a `cp -p`: both leave the mtime unchanged.
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def write(folder: Path, bundle: Bundle) -> None:
    """Write the files that differ, each atomically. Raises UnusableCertificate."""
    contents = ((CERTIFICATE, bundle.leaf.certificate), (KEY, bundle.leaf.key), (CA, bundle.ca_bundle()))
    for file, content in ((folder / name, content) for name, content in contents):
        try:
            if _content(file) != content:
                _replace(file, content)
        except OSError as error:
            raise UnusableCertificate(f"{file}: {error.strerror}; needs a writable folder in memory") from None


def has_valid_leaf_of_another_ca(folder: Path, bundle: Bundle, now: datetime) -> bool:
    """Return whether the folder's certificate is valid now, but not signed by the bundle's signing CA."""
    with suppress(BadCertificate):
        certificate = _content(folder / CERTIFICATE)
        return read(certificate).is_valid(now) and not signed_by(certificate, bundle.authority.certificate)
    return False


def ca_certificates(folder: Path) -> bytes:
    """Return the certificates in `ca.crt`, without other content such as a key. Raises CertificateError."""
    try:
        return b"".join(split((folder / CA).read_bytes()))
    except OSError as error:
        raise CertificateError(
            Cause.MISSING, f"{folder / CA}: {error.strerror}; the Secret needs the field {CA}"
        ) from None
    except BadCertificate as error:
        raise CertificateError(Cause.DAMAGED, f"{folder / CA}: {error}; correct the field {CA} of the Secret") from None


def trust_anchor_in(folder: Path, ca_bundle: bytes) -> bytes | None:
    """Find the CA in a bundle that the folder's certificate chains to."""
    with suppress(BadCertificate):
        return trust_anchor(_content(folder / CERTIFICATE), ca_bundle)
    return None


def has_matching_key(folder: Path) -> bool:
    """Return whether `tls.key` belongs to `tls.crt`. If not, the server still uses an older pair."""
    with suppress(BadCertificate):
        return key_matches(Issued(_content(folder / CERTIFICATE), _content(folder / KEY)))
    return False


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _replace(file: Path, content: bytes) -> None:
    new = file.with_name(f".{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    new.replace(file)
