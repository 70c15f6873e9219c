"""The files that are served: written for `ServingCertificate` to follow, and read to see how they are doing."""

import os
from datetime import datetime
from pathlib import Path

from certs.authority import BadCertificate, Certificate, Issued, fits, read, signed_by, split
from certs.bundle import Bundle
from certs.chain import anchor, sound
from certs.cluster import Cause, CertificateError
from certs.serving import CA, CERTIFICATE, KEY


def write(folder: Path, bundle: Bundle) -> bool:
    """Write what differs, each file whole or not at all, and say whether one did. Raises Trouble."""
    contents = ((CERTIFICATE, bundle.leaf.certificate), (KEY, bundle.leaf.key), (CA, bundle.ca_bundle()))
    changed = [(folder / name, content) for name, content in contents if _content(folder / name) != content]
    for file, content in changed:
        try:
            _replace(file, content)
        except OSError as error:
            raise CertificateError(
                Cause.FOLDER, f"{file}: {error.strerror}; a memory-backed folder of ours is wanted"
            ) from None
    return bool(changed)


def keeps(folder: Path, bundle: Bundle, now: datetime) -> bool:
    """Say whether the folder's certificate can still be served, and its CA is not the one that signs now."""
    certificate = _content(folder / CERTIFICATE)
    try:
        valid = bool(certificate) and read(certificate).is_valid(now)
        return valid and not signed_by(certificate, bundle.authority.certificate)
    except BadCertificate:
        return False


def authorities(folder: Path) -> bytes:
    """Return the certificates of the folder's `ca.crt`, and nothing else that is in it: a key, say. Raises Trouble."""
    try:
        return b"".join(split((folder / CA).read_bytes()))
    except OSError as error:
        raise CertificateError(
            Cause.MISSING, f"{folder / CA}: {error.strerror}; the Secret needs the field {CA}"
        ) from None
    except BadCertificate as error:
        raise CertificateError(Cause.DAMAGED, f"{folder / CA}: {error}; mend the Secret's field {CA}") from None


def own_authority(folder: Path, now: datetime) -> bytes | None:
    """Find the CA in the folder's `ca.crt` by which its certificate is trusted; None where one of the two is over."""
    certificate, ca_bundle = _content(folder / CERTIFICATE), _content(folder / CA)
    try:
        return anchor(certificate, b"".join(sound(ca_bundle, now))) if read(certificate).is_valid(now) else None
    except BadCertificate:
        return None


def issuer(folder: Path, ca_bundle: bytes) -> Certificate | None:
    """Find the CA among these that signed the folder's certificate."""
    try:
        found = anchor(_content(folder / CERTIFICATE), ca_bundle)
        return read(found) if found else None
    except BadCertificate:
        return None


def is_a_pair(folder: Path) -> bool:
    """Say whether the folder's certificate and key belong together; if not, an older pair is served."""
    try:
        return fits(Issued(_content(folder / CERTIFICATE), _content(folder / KEY)))
    except BadCertificate:
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
