"""Read certificate files, and detect their changes."""

from pathlib import Path


class UnusableCertificate(ValueError):
    """A file that can't be used. The message is one line that names the file."""


def read_file(file: Path) -> bytes:
    """Return the content of a file. Raises UnusableCertificate."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise UnusableCertificate(f"{file}: {error.strerror}") from None


def identity(file: Path) -> tuple[int, ...]:
    """Return a value that differs after each change of a file; an empty tuple if the file is missing."""
    try:
        status = file.stat()
    except OSError:
        return ()
    # The ctime detects a `chmod` that makes a file readable, and a `cp -p`: both leave the mtime unchanged.
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
