"""The certificate that a server shows: read from a folder, followed when its files change, or made for one run."""

import os
import shutil
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock

import structlog

from certs.authority import CA_LIFE, BadCertificate, issue_ca, issue_leaf, read
from certs.chain import anchor

# As in a Secret of type kubernetes.io/tls, with the key that cert-manager adds.
CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"

# Of TLS 1.2, those with forward secrecy and authenticated encryption; TLS 1.3 has no others.
SUITES = "ECDHE+AESGCM:ECDHE+CHACHA20"

MEMORY = "/dev/shm"  # noqa: S108 (what is made in it is ours alone)
WANTED = "make {} a writable folder in memory, as a container runtime does"

log = structlog.get_logger("certs")


class UnusableCertificate(ValueError):
    """A file that can't be served. Its text is one line that names it."""


class ServingCertificate:
    """`tls.crt` and `tls.key` of a folder as one TLS context, made anew when they change. Threads may share it.

    `problem` is why newer files are not served, in words, and empty while they are.
    """

    def __init__(self, folder: Path, *, awaited: bool = False) -> None:
        """Read the folder for the first time. Raises Unusable, but not for `awaited` files that are still to come."""
        self.authority = folder / CA if awaited else authority_of(folder)
        self._folder = folder
        self._lock = Lock()
        self._seen, self.problem = self._identity(), ""
        self._context: ssl.SSLContext | None = None
        self._chain = b""
        if not awaited or () not in self._seen:
            self._load()

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection. The old one stays while the new files can't be used."""
        with self._lock:
            if (found := self._identity()) != self._seen:
                self._follow(found)
            elif self.problem:
                self.problem = ""  # those that are served are back
            return self._context

    def ends(self) -> dict[str, datetime]:
        """Return the ends of what is served: of the `leaf`, and of the `ca` by which `ca.crt` trusts it, where known.

        No file but `ca.crt` is read: that the others have changed is seen with the next connection or probe.
        """
        chain, found = self._chain, {}
        with suppress(BadCertificate, OSError):
            found["leaf"] = read(chain).not_after
            if ca := anchor(chain, (self._folder / CA).read_bytes()):
                found["ca"] = read(ca).not_after
        return found

    def _follow(self, found: tuple[tuple[int, ...], ...]) -> None:
        try:
            self._load()
        except UnusableCertificate as error:
            # Tried again for each connection, for it may be that no file descriptor was left; but said once.
            if str(error) != self.problem:
                log.warning("the serving certificate stays as it was", reason=str(error))
            self.problem = str(error)
            return
        self._seen, self.problem = found, ""
        log.info("the serving certificate was read anew", folder=str(self._folder))

    def _load(self) -> None:
        context = load_context(self._folder)
        # Where the file was replaced since then, it differs from what was `_seen`, and both are read again.
        self._chain, self._context = _content(self._folder / CERTIFICATE), context

    def _identity(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_identity(self._folder / name) for name in (CERTIFICATE, KEY))


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UnusableCertificate(f"{file}: {error.strerror}") from None


def _identity(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError:
        return ()
    # The ctime as well: who makes a file readable, or writes it with `cp -p`, leaves the mtime as it was.
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def load_context(folder: Path) -> ssl.SSLContext:
    """Make a server's TLS context from a folder. Raises Unusable."""
    certificate, key = _readable(folder / CERTIFICATE), _readable(folder / KEY)
    _certificates(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(SUITES)
    context.set_alpn_protocols(["http/1.1"])
    # No API server resumes a session, and a ticket for each handshake has its price.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        # Without a passphrase at hand OpenSSL asks for one on the terminal, and waits.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UnusableCertificate(f"{key}: is not the key of {certificate}") from None
        raise UnusableCertificate(f"{key}: holds no private key in PEM, free of a passphrase") from None
    return context


def authority_of(folder: Path) -> Path:
    """Return the folder's `ca.crt`, with which clients verify us. Raises Unusable."""
    return _certificates(_readable(folder / CA))


def _readable(file: Path) -> Path:
    try:
        file.open("rb").close()
    except OSError as error:
        raise UnusableCertificate(f"{file}: {error.strerror}") from None
    return file


def _certificates(file: Path) -> Path:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError:
        raise UnusableCertificate(f"{file}: holds no certificate in PEM") from None
    return file


def memory_folder(memory: str = MEMORY) -> str | None:
    """Return the folder that is in memory, writable on a read-only root as well; None where there is none."""
    return memory if os.access(memory, os.W_OK) else None


@contextmanager
def temporary_folder(memory: str = MEMORY, disk: str | None = None) -> Iterator[Path]:
    """Make a folder for its own user alone, in memory where there is such a place, and remove it at the end.

    Only the process that made it removes it: a forked worker comes through here as well when it exits. Without `disk`
    that is where TMPDIR says. Raises Unusable where nothing can be written.
    """
    owner, folder = os.getpid(), _made(memory_folder(memory), memory, disk)
    try:
        yield folder
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


def _made(place: str | None, memory: str, disk: str | None) -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="kubevirt-scheduler-", dir=place or disk))  # 0700
    except OSError as error:
        if place:  # it is full, say
            return _made(None, memory, disk)
        raise UnusableCertificate(f"there is no folder for keys: {error.strerror}; {WANTED.format(memory)}") from None
    if not place:
        log.warning("keys are on disk while this runs", folder=str(folder), advice=WANTED.format(memory))
    return folder


@contextmanager
def self_signed_folder(names: Sequence[str], now: datetime) -> Iterator[Path]:
    """Make such a folder with a CA and a serving certificate, which live a year: nobody renews them."""
    with temporary_folder() as folder:
        ca = issue_ca(now)
        leaf = issue_leaf(ca, names, now, CA_LIFE)
        for name, content in ((CA, ca.certificate), (CERTIFICATE, leaf.certificate), (KEY, leaf.key)):
            _write(folder / name, content)
        yield folder


def _write(file: Path, content: bytes) -> None:
    try:
        file.touch(mode=0o600)
        file.write_bytes(content)
    except OSError as error:
        raise UnusableCertificate(f"{file}: {error.strerror}; three small files must have room there") from None
