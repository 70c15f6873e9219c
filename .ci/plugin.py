"""Build the kubectl plugin for krew: one archive per platform, with all packages of the lock.

An archive runs with any of PYTHONS. The wheels of several Python versions share one folder: their Python code is the
same, and the file names of compiled modules contain the version.
"""

import argparse
import gzip
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# The platform tags of pip, by the operating system and architecture of krew.
PLATFORMS = {
    ("linux", "amd64"): ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    ("linux", "arm64"): ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
    ("darwin", "arm64"): ("macosx_11_0_arm64", "macosx_10_12_universal2", "macosx_10_9_universal2"),
}
PLUGIN = "kubectl-coschedule"
LAUNCHER = f"""\
#!/usr/bin/env python3
import os
import sys

if not (3, 11) <= sys.version_info[:2] <= (3, 14):
    sys.exit("{PLUGIN} needs Python 3.11 to 3.14, and python3 is " + sys.version.split()[0])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib"))

from webhook.cli import kubectl_plugin

kubectl_plugin()
"""
# The asyncio variant of the Kubernetes client, 64 MB, is unused here.
UNUSED = "kubernetes/aio/"


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def _download(folder: Path, python: str, tags: tuple[str, ...]) -> None:
    """Download the wheels of the lock, checked against their hashes."""
    platforms = [f"--platform={tag}" for tag in tags]
    lock = ["--require-hashes", "--no-deps", "--only-binary=:all:", f"--requirement={ROOT / 'requirements.lock'}"]
    _pip("download", *lock, f"--python-version={python}", *platforms, f"--dest={folder}")


def _unpack(wheels: Path, folder: Path) -> None:
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not name.startswith(UNUSED):
                    archive.extract(name, folder)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop what differs between builds of one commit."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def build(system: str, architecture: str, out: Path) -> Path:
    """Build the archive of one platform and return its path."""
    with TemporaryDirectory() as scratch:
        wheels, content = Path(scratch, "wheels"), Path(scratch, "content")
        for python in PYTHONS:
            _download(wheels, python, PLATFORMS[system, architecture])
        _pip("wheel", "--no-index", "--no-deps", "--no-build-isolation", f"--wheel-dir={wheels}", str(ROOT))
        _unpack(wheels, content / "lib")
        launcher = content / PLUGIN
        launcher.write_text(LAUNCHER)
        launcher.chmod(0o755)
        (content / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
        archive = out / f"{PLUGIN}-{system}-{architecture}.tar.gz"
        # gzip's header has a time too.
        with (
            archive.open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            for path in sorted(content.rglob("*")):
                tar.add(path, path.relative_to(content), recursive=False, filter=_without_owner)
    return archive


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--platform", action="append", help="such as linux-amd64; all by default")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    for system, architecture in PLATFORMS:
        if not options.platform or f"{system}-{architecture}" in options.platform:
            print(build(system, architecture, options.out))
