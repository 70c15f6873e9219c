"""Where the served pair comes from: a folder with `tls.crt`, `tls.key` and `ca.crt`, or this process' memory."""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from certs.authority import BadCertificate, Issued, key_matches, read, split, trust_anchor
from certs.secret import CA, CERTIFICATE, KEY, Bundle, Cause, CertificateError


class UnusableCertificate(CertificateError):
    """A file that can't be used. The message is one line that names the file."""

    def __init__(self, text: str) -> None:
        super().__init__(Cause.DAMAGED, text)


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


class InMemory:
    """The pair of a Secret. The controller sets it in its thread, and the server reads it in another one."""

    name = "the Secret"

    def __init__(self, bundle: Bundle | None = None) -> None:
        self.bundle = bundle  # None until the first pass

    def state(self) -> object:
        """Return a value that differs after each change; None before the first pass."""
        return self.bundle and self.bundle.serving

    def pair(self) -> Issued:
        """Return the certificate and its key. Raises UnusableCertificate before the first pass."""
        if not self.bundle:
            raise UnusableCertificate(f"{self.name} is not read yet")
        return self.bundle.serving

    def ca_bundle(self) -> bytes:
        """Return all trusted certificates."""
        return self.bundle.ca_bundle() if self.bundle else b""

    def has_another_valid_certificate(self, bundle: Bundle, now: datetime) -> bool:
        """Return whether the served certificate is valid now, and not this bundle's."""
        served = self.bundle and self.bundle.serving
        return bool(served and served != bundle.serving and read(served.certificate).is_valid(now))


class Folder(Struct, frozen=True):
    """A folder with the files of another source, such as a mounted Secret."""

    path: Path

    @property
    def name(self) -> str:
        """Return the path, for messages."""
        return str(self.path)

    def state(self) -> object:
        """Return a value that differs after each change of the pair."""
        return identity(f"{self.path}/{CERTIFICATE}"), identity(f"{self.path}/{KEY}")

    def pair(self) -> Issued:
        """Return the certificate with its intermediate CAs, and its key. Raises UnusableCertificate."""
        return Issued(read_file(self.path / CERTIFICATE), read_file(self.path / KEY))

    def ca_bundle(self) -> bytes:
        """Return the certificates in `ca.crt`, without other content such as a key. Raises CertificateError."""
        file = self.path / CA
        try:
            return b"".join(split(file.read_bytes()))
        except OSError as error:
            raise CertificateError(
                Cause.MISSING, f"{file}: {error.strerror}; the Secret needs the field {CA}"
            ) from None
        except BadCertificate as error:
            raise CertificateError(Cause.DAMAGED, f"{file}: {error}; correct the field {CA} of the Secret") from None

    def trust_anchor_in(self, ca_bundle: bytes) -> bytes | None:
        """Find the CA in a bundle that the certificate chains to."""
        with suppress(BadCertificate, UnusableCertificate):
            return trust_anchor(read_file(self.path / CERTIFICATE), ca_bundle)
        return None

    def has_matching_key(self) -> bool:
        """Return whether `tls.key` belongs to `tls.crt`. If not, the server still uses an older pair."""
        with suppress(BadCertificate, UnusableCertificate):
            return key_matches(self.pair())
        return False
