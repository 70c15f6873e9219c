"""The unit tests on the image's Python and OpenSSL, which are newer than on most machines that run `make test`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.image.image import base_archive, call, index_files
from tests.image.test_image import OUTER

pytestmark = [pytest.mark.image, pytest.mark.needs("buildah", "mmdebstrap")]

TIMEOUT = 1800.0  # seconds; many times more than the tests take
# $1: the root, $2: the sources, $3 and $4: this machine's CA certificates and pip settings.
RUN = """
set -e
mount -t proc proc "$1/proc"
mkdir -p "$1/dev" "$1/src"
mount --rbind /dev "$1/dev"
mount -t tmpfs shm "$1/dev/shm"
mount --bind "$2" "$1/src"
touch "$1/etc/pip.conf"
mount --bind "$3" "$1/etc/ssl/certs/ca-certificates.crt"
mount --bind "$4" "$1/etc/pip.conf"
exec chroot "$1" /bin/sh -ec '
cd /src
python3 -m venv /venv
/venv/bin/pip install --quiet --require-hashes -r requirements-dev.lock
/venv/bin/pip install --quiet --no-deps --no-build-isolation -e .
export PATH=/venv/bin:$PATH
exec pytest -q -m "not controlplane and not needs and not image and not nodes" --numprocesses 2 --dist loadfile
'
"""


def test_the_unit_tests_pass_on_the_python_of_the_image(tree: Path, tmp_path: Path) -> None:
    """3,341 tests on Python 3.11 could not see that 3.13 refuses the CAs of some clusters."""
    root = tmp_path / "root"
    root.mkdir()
    call(["tar", "--extract", f"--file={base_archive()}", f"--directory={root}"])
    for name in "resolv.conf", "hosts":
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    certificates, settings = index_files(tmp_path).values()
    log, kept = tmp_path / "log", ("http_proxy", "https_proxy", "no_proxy")
    environment = {name: value for name, value in os.environ.items() if name.lower() in kept}
    environment |= {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LANG": "C.UTF-8"}
    command = [*OUTER, "unshare", "--mount", "--pid", "--fork", "/bin/sh", "-c", RUN, "run"]
    with log.open("w") as file:
        status = subprocess.run(
            [*command, root, tree, certificates, settings],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            check=False,
            timeout=TIMEOUT,
            env=environment,
        ).returncode
    assert status == 0, log.read_text()[-6000:]
    print(log.read_text().splitlines()[-1])
