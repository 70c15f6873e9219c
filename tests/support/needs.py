"""The programs that `make test` neither installs nor builds everywhere, and how to get each.

A test that runs one declares it: `@pytest.mark.needs("promtool")`. Where the program is missing, the test is skipped
with the reason. Under CI it fails, because CI has all programs: `.ci/run` installs the Debian packages that this module
prints when it runs as a program, and `make test` builds the other programs there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from tests.support.controlplane import build

# The names of each program, and the Debian package that has it.
PACKAGED = {
    "buildah": (("buildah",), "buildah"),
    "chromium": (("chromium", "chromium-browser", "google-chrome"), "chromium"),
    "ip": (("ip",), "iproute2"),
    "mkfs": (("mkfs.ext4",), "e2fsprogs"),
    "mmdebstrap": (("mmdebstrap",), "mmdebstrap"),
    "nft": (("nft",), "nftables"),
    "openssl": (("openssl",), "openssl"),
    "prometheus": (("prometheus",), "prometheus"),
    "promtool": (("promtool",), "prometheus"),
}
PROGRAMS = (*PACKAGED, *build.RARE)
# What the running test declares. None outside of tests, where each program may be used.
declared: frozenset[str] | None = None


class MissingProgramError(RuntimeError):
    """A program that isn't installed, or that the running test doesn't declare."""


def find(name: str) -> str:
    """Return the path of a packaged program. Raises MissingProgramError.

    Also raises it for a test that doesn't declare the program, so that the test fails where the program is installed.
    """
    if declared is not None and name not in declared:
        raise MissingProgramError(f'the test runs {name}: mark it with @pytest.mark.needs("{name}")')
    path = next(filter(None, map(shutil.which, PACKAGED[name][0])), None)
    if path is None:
        raise MissingProgramError(advice(name))
    return path


def is_missing(name: str) -> bool:
    """Return whether a program is neither installed nor built."""
    return not build.is_built(name) if name in build.RARE else not any(map(shutil.which, PACKAGED[name][0]))


def advice(name: str) -> str:
    """Return what is missing, and the command that provides it."""
    if name in build.RARE:
        return f"{name} is built only under CI (CI=true make test)"
    return f"no {name} on the PATH (apt-get install {PACKAGED[name][1]})"


def missing_packages(names: Iterable[str] = PACKAGED) -> list[str]:
    """Return the Debian packages of the missing programs."""
    return sorted({PACKAGED[name][1] for name in names if is_missing(name)})


def under_ci() -> bool:
    """Return whether a CI runs the tests."""
    return bool(os.environ.get("CI"))


if __name__ == "__main__":
    print(*missing_packages())
