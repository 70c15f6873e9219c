"""From a certificate up to the CA by which it is trusted."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from certs.authority import BadCertificate, read, signed_by, split


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


def sound(ca_bundle: bytes, now: datetime) -> Iterator[bytes]:
    """Yield the CAs that are valid now, and nothing of what can't be read."""
    with suppress(BadCertificate):
        for one in split(ca_bundle):
            certificate = read(one)
            if certificate.is_ca and certificate.is_valid(now):
                yield one
