"""Load the CAs whose client certificates the server accepts, and reload them when their file changes."""

import ssl
from datetime import datetime
from pathlib import Path

import structlog

from certs.authority import BadCertificate, read, split
from certs.files import UnusableCertificate, identity, read_file

BEGIN = b"-----BEGIN CERTIFICATE-----"

log = structlog.get_logger("certs")


class ClientCa:
    """The CAs in a file of PEM certificates. `problem` is the reason why a newer file isn't used, empty otherwise."""

    def __init__(self, file: Path) -> None:
        """Load the file. Raises UnusableCertificate."""
        self._file, self.problem = file, ""
        self._seen, self._pem = identity(file), _read_cas(file)

    def pem(self) -> str:
        """Return the CAs in PEM, and reload a changed file. An unusable file leaves the old CAs."""
        if (found := identity(self._file)) != self._seen:
            self._reload(found)
        elif self.problem:
            self.problem = ""  # the used file is back in place
        return self._pem

    def expiry(self) -> datetime:
        """Return when the last of the CAs expires. From then on, no client is accepted."""
        return max(read(one).not_after for one in split(self._pem.encode()))

    def _reload(self, found: tuple[int, ...]) -> None:
        try:
            self._pem = _read_cas(self._file)
        except UnusableCertificate as error:
            # Each connection retries, because the file may be half written. Log it once.
            if str(error) != self.problem:
                log.warning("client CA unusable, keeping the old one", reason=str(error))
            self.problem = str(error)
            return
        self._seen, self.problem = found, ""
        log.info("client CA reloaded", file=str(self._file))


def trust_clients(context: ssl.SSLContext, pem: str) -> None:
    """Make a server's TLS context require a client certificate of one of these CAs."""
    context.load_verify_locations(cadata=pem)
    context.verify_mode = ssl.CERT_REQUIRED
    # As in Go: an intermediate CA in the file is trusted without its root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _read_cas(file: Path) -> str:
    content = read_file(file)
    try:
        certificates = split(content)
        if len(certificates) < content.count(BEGIN):  # `split` skips a half-written one at the end
            raise UnusableCertificate(f"{file}: contains an incomplete certificate")
        cas = b"".join(one for one in certificates if read(one).is_ca).decode()
        if not cas:
            raise UnusableCertificate(f"{file}: contains no PEM CA certificate")
        trust_clients(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cas)
    except BadCertificate as error:
        raise UnusableCertificate(f"{file}: {error}") from None
    except ssl.SSLError:
        raise UnusableCertificate(f"{file}: contains a certificate that OpenSSL cannot read") from None
    return cas
