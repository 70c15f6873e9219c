"""Load the serving certificate into a TLS context, and again after each change."""

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from certs.authority import BadCertificate, Issued, read, split, trust_anchor
from certs.files import Folder, InMemory, UnusableCertificate, identity, read_file
from certs.secret import CERTIFICATE, KEY, CertificateError

# The TLS 1.2 cipher suites with forward secrecy and authenticated encryption. All suites of TLS 1.3 have both.
CIPHER_SUITES = "ECDHE+AESGCM:ECDHE+CHACHA20"

# SSL_OP_NO_RX_CERTIFICATE_COMPRESSION of OpenSSL 3.2 and newer: 390 client certificates in 1.3 KB took 12 ms.
NO_COMPRESSED_CERTIFICATES = 1 << 33

T = TypeVar("T")

log = logging.getLogger("certs")
BEGIN = b"-----BEGIN CERTIFICATE-----"


class Reloaded(Generic[T]):
    """A value that is loaded again when its source changes."""

    def __init__(self, name: str, load: Callable[[], T], state: Callable[[], object]) -> None:
        """Load the value if the `state` of the source is not None. Raises UnusableCertificate."""
        # Why a newer source isn't used; empty otherwise.
        self.problem = ""
        self._name = name
        self._load = load
        self._state = state  # each new connection asks for it
        self._seen = state()
        # None until the source exists.
        self.value: T | None = None if self._seen is None else load()

    def current(self, *, outdated: bool = False) -> T | None:
        """Return the value, loaded again if the source has changed or if it is `outdated`.

        An unusable source leaves the old value. Each call retries, because a file may be half written, or the process
        may lack file descriptors.
        """
        state = self._state()
        if state == self._seen and not outdated:
            self.problem = ""
            return self.value
        try:
            self.value = self._load()
        except UnusableCertificate as error:
            if str(error) != self.problem:  # log it once
                log.warning("%s unusable, keeping the old one", self._name, extra={"reason": str(error)})
            self.problem = str(error)
            return self.value
        if state != self._seen:
            log.info("%s reloaded", self._name)
        self._seen = state
        self.problem = ""
        return self.value


def client_ca(file: Path) -> Reloaded[str]:
    """Return the CAs of clients, in PEM. Raises UnusableCertificate."""
    return Reloaded("client CA", lambda: _read_cas(file), lambda: identity(str(file)))


class Served(NamedTuple):
    """What the server uses."""

    context: ssl.SSLContext
    chain: bytes  # the serving certificate and its intermediate CAs, in PEM
    trusted: str  # the CAs of clients in PEM; empty if clients need no certificate


class ServingCertificate:
    """The TLS context of a pair, loaded again when the pair changes. Safe to share by threads.

    With a `client_ca`, the context requires client certificates.
    """

    def __init__(self, source: Folder | InMemory, *, client_ca: Reloaded[str] | None = None) -> None:
        """Load the pair if there is one. Raises UnusableCertificate."""
        self.client_ca = client_ca
        self._source = source
        self._lock = Lock()
        self._served = Reloaded("serving certificate", self._load, source.state)

    @property
    def problem(self) -> str:
        """The reason why a newer pair is not served, empty while it is served."""
        return self._served.problem

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection, and load a changed pair. An unusable pair leaves the old context."""
        served = self._served.value
        # While another thread reloads, serve the old context: a hanging file system must not stop the probes as well.
        if self._lock.acquire(blocking=served is None):
            try:
                # A change of the client CA waits for a usable pair: the old key is no longer in a file.
                trusted = self.client_ca.current() if self.client_ca else ""
                served = self._served.current(outdated=served is not None and served.trusted != trusted)
            finally:
                self._lock.release()
        return served.context if served else None

    def trusted_cas(self) -> str:
        """Return the CAs of clients in PEM, as in the last context; empty if clients need no certificate."""
        return self._served.value.trusted if self._served.value else ""

    def ca_bundle(self) -> bytes:
        """Return the certificates that a client may trust; empty if they can't be read."""
        with suppress(CertificateError):
            return self._source.ca_bundle()
        return b""

    def expiry_times(self) -> dict[str, datetime]:
        """Return the expiry of the served `leaf`, of the trusted `ca` that signed it, and of the `client-ca`.

        From the expiry of the last client CA, no client is accepted. Omits an unknown one. Reads only `ca.crt`: the
        next connection or probe detects a change of the pair.
        """
        times: dict[str, datetime] = {}
        with suppress(BadCertificate):
            chain = self._served.value.chain if self._served.value else b""
            times["leaf"] = read(chain).not_after
            ca = trust_anchor(chain, self.ca_bundle())
            if ca and ca not in split(chain):
                times["ca"] = read(ca).not_after
        if self.client_ca and self.client_ca.value:
            times["client-ca"] = max(read(ca).not_after for ca in split(self.client_ca.value.encode()))
        return times

    def _load(self) -> Served:
        pair = self._source.pair()
        context = load_context(pair, self._source.name)
        trusted = (self.client_ca and self.client_ca.value) or ""
        if trusted:
            trust_clients(context, trusted)
        return Served(context, pair.certificate, trusted)


def load_context(pair: Issued, place: str) -> ssl.SSLContext:
    """Load a pair into a TLS context for a server. Raises UnusableCertificate, which names its `place`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHER_SUITES)
    context.set_alpn_protocols(["http/1.1"])
    # The order of the client: with AES in hardware, Go prefers AES-128 and SHA-256, which cost less than the others.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    # API servers don't resume sessions, so don't spend time on a ticket per handshake.
    context.options |= ssl.OP_NO_TICKET | NO_COMPRESSED_CERTIFICATES
    context.num_tickets = 0
    try:
        with _file_in_memory(pair.certificate) as certificate, _file_in_memory(pair.key) as key:
            # Without a password argument, OpenSSL prompts for a passphrase on the terminal and blocks.
            context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UnusableCertificate(f"{place}/{KEY}: does not match {place}/{CERTIFICATE}") from None
        raise UnusableCertificate(
            f"{place}: needs a PEM certificate in {CERTIFICATE} and its unencrypted PEM private key in {KEY}"
        ) from None
    except OSError as error:
        raise UnusableCertificate(f"{place}: cannot load the certificate from memory: {error.strerror}") from None
    return context


@contextmanager
def _file_in_memory(content: bytes) -> Iterator[str]:
    """Yield the path of a file that is only in memory, because OpenSSL reads nothing but files."""
    with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as file:
        file.write(content)
        yield f"/proc/self/fd/{file.fileno()}"


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
