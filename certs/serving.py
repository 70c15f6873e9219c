"""Load a folder's serving certificate into a TLS context, reload it when its files change, or create it for one run."""

import fcntl
import logging
import os
import shutil
import ssl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from certs.authority import CA_LIFETIME, BadCertificate, issue_ca, issue_leaf, read, split, trust_anchor
from certs.files import UnusableCertificate, identity, read_file, write
from certs.secret import CA, CERTIFICATE, KEY, Bundle

# The TLS 1.2 cipher suites with forward secrecy and authenticated encryption. All suites of TLS 1.3 have both.
CIPHER_SUITES = "ECDHE+AESGCM:ECDHE+CHACHA20"

# Memory, writable even on a read-only root.
MEMORY_FOLDER = "/dev/shm"  # noqa: S108 (mkdtemp creates a private folder in it)
PREFIX = "kubevirt-scheduler-keys-"
UNLOCKED = "new-"  # before PREFIX, until the folder is locked; otherwise another start could remove it

# SSL_OP_NO_RX_CERTIFICATE_COMPRESSION of OpenSSL 3.2 and newer: 390 client certificates in 1.3 KB took 12 ms.
NO_COMPRESSED_CERTIFICATES = 1 << 33

T = TypeVar("T")

log = logging.getLogger("certs")
BEGIN = b"-----BEGIN CERTIFICATE-----"


class Reloaded(Generic[T]):
    """A value of some files, loaded again when they change."""

    def __init__(self, name: str, load: Callable[[], T], *files: Path, awaited: bool = False) -> None:
        """Load the files. Raises UnusableCertificate; if they are `awaited`, missing ones are no error."""
        # Why newer files aren't used; empty otherwise.
        self.problem = ""
        self._name = name
        self._load = load
        self._files = tuple(map(str, files))  # each new connection asks for their state
        self._seen = self._state()
        # None until the files exist.
        self.value: T | None = None if awaited and () in self._seen else load()

    def current(self, *, outdated: bool = False) -> T | None:
        """Return the value, loaded again if the files have changed or if it is `outdated`.

        Unusable files leave the old value. Each call retries, because a file may be half written, or the process may
        lack file descriptors.
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
            log.info("%s reloaded", self._name, extra={"file": self._files[0]})
        self._seen = state
        self.problem = ""
        return self.value

    def _state(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(identity, self._files))


def client_ca(file: Path) -> Reloaded[str]:
    """Return the CAs of clients, in PEM. Raises UnusableCertificate."""
    return Reloaded("client CA", lambda: _read_cas(file), file)


class Served(NamedTuple):
    """What the server uses."""

    context: ssl.SSLContext
    chain: bytes  # the serving certificate and its intermediate CAs, in PEM
    trusted: str  # the CAs of clients in PEM; empty if clients need no certificate


class ServingCertificate:
    """The TLS context of a folder's `tls.crt` and `tls.key`, reloaded when the files change. Safe to share by threads.

    With a `client_ca`, the context requires client certificates.
    """

    def __init__(self, folder: Path, *, awaited: bool = False, client_ca: Reloaded[str] | None = None) -> None:
        """Load the files. Raises UnusableCertificate; with `awaited`, missing files are no error."""
        self.authority = folder / CA
        self.client_ca = client_ca
        self._folder = folder
        self._lock = Lock()
        files = folder / CERTIFICATE, folder / KEY
        self._served = Reloaded("serving certificate", self._load, *files, awaited=awaited)

    @property
    def problem(self) -> str:
        """The reason why newer files are not served, empty while the files are served."""
        return self._served.problem

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection, and reload changed files. Unusable files leave the old context."""
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

    def expiry_times(self) -> dict[str, datetime]:
        """Return the expiry of the served `leaf`, of the `ca` in `ca.crt` that it chains to, and of the `client-ca`.

        From the expiry of the last client CA, no client is accepted. Omits an unknown one. Reads only `ca.crt`: the
        next connection or probe detects a change of the other files.
        """
        times: dict[str, datetime] = {}
        with suppress(BadCertificate, OSError):
            chain = self._served.value.chain if self._served.value else b""
            times["leaf"] = read(chain).not_after
            if ca := trust_anchor(chain, (self._folder / CA).read_bytes()):
                times["ca"] = read(ca).not_after
        if self.client_ca and self.client_ca.value:
            times["client-ca"] = max(read(ca).not_after for ca in split(self.client_ca.value.encode()))
        return times

    def _load(self) -> Served:
        context = load_context(self._folder)
        trusted = (self.client_ca and self.client_ca.value) or ""
        if trusted:
            trust_clients(context, trusted)
        # If `tls.crt` was replaced in between, its state differs from the last one, and the next call loads it again.
        return Served(context, read_file(self._folder / CERTIFICATE), trusted)


def load_context(folder: Path) -> ssl.SSLContext:
    """Load a folder's certificate and key into a TLS context for a server. Raises UnusableCertificate."""
    certificate = folder / CERTIFICATE
    key = folder / KEY
    for file in certificate, key:
        read_file(file)
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
        # Without a password argument, OpenSSL prompts for a passphrase on the terminal and blocks.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:  # an ssl.SSLError, or that of a file that is gone since
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise UnusableCertificate(f"{key}: does not match {certificate}") from None
        raise UnusableCertificate(
            f"{folder}: needs a PEM certificate in {CERTIFICATE} and its unencrypted PEM private key in {KEY}"
        ) from None
    return context


@contextmanager
def temporary_folder(memory: str = MEMORY_FOLDER, disk: str | None = None) -> Iterator[Path]:
    """Create a folder for the current user only, in memory if possible, and remove it at the end.

    Only the process that created the folder removes it: a forked worker also runs this code when it exits. A killed
    process leaves its folder behind, and the next start removes it. Without `disk`, TMPDIR is the alternative to
    memory. Raises UnusableCertificate if neither is writable.
    """
    owner = os.getpid()
    folder = _create_folder(memory, disk)
    lock = _lock(folder)
    try:
        _remove_abandoned(folder.parent)
        folder = folder.rename(folder.with_name(folder.name.removeprefix(UNLOCKED)))
        yield folder
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int:
    """Lock a folder, and return the descriptor that holds the lock. Forked processes share the lock.

    Raises BlockingIOError if a live process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # a live process holds it, it belongs to another user, or it is gone
            descriptor = _lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
            log.info("keys of a killed process removed", extra={"folder": str(folder)})


def _create_folder(memory: str, disk: str | None) -> Path:
    advice = f"mount writable memory at {memory}, as container runtimes do"
    for place in memory, disk:
        with suppress(OSError):  # for example, the memory-backed folder is full
            folder = Path(tempfile.mkdtemp(prefix=UNLOCKED + PREFIX, dir=place))  # mode 0700
            if place != memory:
                log.warning("private keys are on disk", extra={"folder": str(folder), "advice": advice})
            return folder
    raise UnusableCertificate(f"cannot create a folder for private keys; {advice}")


@contextmanager
def self_signed_folder(names: Sequence[str], now: datetime) -> Iterator[Path]:
    """Create a temporary folder with a CA and a serving certificate. Nothing renews them."""
    with temporary_folder() as folder:
        ca = issue_ca(now)
        write(folder, Bundle(ca, issue_leaf(ca, names, now, CA_LIFETIME)))
        yield folder


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
