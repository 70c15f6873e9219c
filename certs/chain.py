"""Find the CA that a certificate chains to."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from certs.authority import BadCertificate, read, signed_by, split


def trust_anchor(chain: bytes, ca_bundle: bytes) -> bytes | None:
    """Find the CA that the first certificate chains to, directly or through intermediates. Raises BadCertificate."""
    certificate, *intermediates = split(chain)
    roots = split(ca_bundle)
    while not (found := next((ca for ca in roots if signed_by(certificate, ca)), None)):
        issuers = [one for one in intermediates if signed_by(certificate, one)]
        if not issuers:
            return None
        certificate = issuers[0]
        intermediates.remove(certificate)
    return found


def valid_cas(ca_bundle: bytes, now: datetime) -> Iterator[bytes]:
    """Yield the CAs that are valid now. Yields nothing more after an unreadable certificate."""
    with suppress(BadCertificate):
        for pem in split(ca_bundle):
            certificate = read(pem)
            if certificate.is_ca and certificate.is_valid(now):
                yield pem
