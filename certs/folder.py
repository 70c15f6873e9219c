"""The files that are served: written for `ServingCertificate` to follow, and read to see how they are doing."""

import os
from datetime import datetime
from pathlib import Path

from certs.authority import BadCertificate, Certificate, read, signed_by, split
from certs.bundle import Bundle
from certs.cluster import Cause, Trouble
from certs.serving import CA, CERTIFICATE, KEY


def write(folder: Path, bundle: Bundle) -> bool:
    """Write what differs, each file whole or not at all, and say whether one did. Raises Trouble."""
    contents = ((CERTIFICATE, bundle.leaf.certificate), (KEY, bundle.leaf.key), (CA, bundle.ca_bundle()))
    changed = [(folder / name, content) for name, content in contents if _content(folder / name) != content]
    for file, content in changed:
        try:
            _replace(file, content)
        except OSError as error:
            raise Trouble(Cause.FOLDER, f"{file}: {error.strerror}; a memory-backed folder of ours is wanted") from None
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
    """Return the folder's `ca.crt`. Raises Trouble."""
    try:
        content = (folder / CA).read_bytes()
        split(content)
    except OSError as error:
        raise Trouble(Cause.MISSING, f"{folder / CA}: {error.strerror}; the Secret needs the field {CA}") from None
    except BadCertificate as error:
        raise Trouble(Cause.DAMAGED, f"{folder / CA}: {error}; mend the Secret's field {CA}") from None
    return content


def served(folder: Path) -> Certificate | None:
    """Read the folder's certificate; None where there is none that can be read."""
    try:
        return read(_content(folder / CERTIFICATE))
    except BadCertificate:
        return None


def issuer(folder: Path, ca_bundle: bytes | None = None) -> Certificate | None:
    """Find the CA that signed the folder's certificate: among these, or in its `ca.crt`."""
    ca_bundle = _content(folder / CA) if ca_bundle is None else ca_bundle
    try:
        found = anchor(_content(folder / CERTIFICATE), ca_bundle)
        return read(found) if found else None
    except BadCertificate:
        return None


def anchor(chain: bytes, ca_bundle: bytes) -> bytes | None:
    """Find the CA by which a certificate is trusted, be it by way of those that follow it. Raises BadCertificate."""
    certificate, *between = split(chain)
    roots = split(ca_bundle)
    while not (found := next((ca for ca in roots if signed_by(certificate, ca)), None)):
        above = [one for one in between if signed_by(certificate, one)]
        if not above:
            return None
        certificate = above[0]
        between.remove(certificate)
    return found


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
