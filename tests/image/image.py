"""Builds the image from a clean tag, on a base of Debian packages, without an image registry or a container engine."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from webhook import __version__

NAME, BASE = "localhost/kubevirt-scheduler:test", "localhost/base"
# Like the Dockerfile's default BASE: the same Debian release, and the same minor version of Python.
DEBIAN = ["--variant=minbase", "--include=python3,python3-venv,ca-certificates", "--skip=output/dev", "trixie"]
# The build mounts this machine's own files at these paths.
CERTIFICATES, PIP_CONF = "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf"
INDEX_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
STEP_TIMEOUT = 600.0  # seconds, ten times the slowest measured step


class ImageError(RuntimeError):
    """The image can't be built; the message states the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Image:
    """The built image: its configuration, the mounted root folder of a container, and buildah's environment."""

    config: dict[str, Any]
    root: Path
    store: dict[str, str]

    @property
    def user(self) -> str:
        return str(self.config["User"])

    @property
    def environment(self) -> dict[str, str]:
        return dict(one.split("=", 1) for one in self.config["Env"])

    def push(self, name: str, digest_file: Path) -> str:
        """Push the image to a registry without TLS, and return its digest."""
        options = ["--tls-verify=false", f"--digestfile={digest_file}"]
        call(["buildah", "push", *options, NAME, f"docker://{name}"], self.store)
        return digest_file.read_text()


def tagged_tree(folder: Path) -> Path:
    """Return a new repository with the files of this one, also those that aren't committed yet, and a tag."""
    listed = call(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]).split("\0")
    for name in filter(lambda name: (ROOT / name).is_file(), listed):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for step in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["commit", "--quiet", "-m", "release"],
        ["tag", f"v{__version__}"],
    ):
        call(["git", "-C", str(folder), *identity, *step])
    return folder


@contextmanager
def built_image(tree: Path, folder: Path) -> Iterator[Image]:
    """Build a repository's image in a folder; only the cached base archive remains afterwards. Raises ImageError."""
    if os.geteuid():
        raise ImageError("mounts, and users that are not ours, need root: sudo make test-image")
    archive, store = base_archive(), folder / "store"
    store.mkdir()
    try:
        environment = _buildah(store)
        dockerfile = f"FROM scratch\nADD {archive.name} /\n"
        call(["buildah", "build", "--tag", BASE, "--file=-", str(archive.parent)], environment, dockerfile)
        volumes = " ".join(f"--volume={file}:{target}:ro" for target, file in index_files(store).items())
        variables = [f"IMAGE={NAME}", f"BASE={BASE}", "ENGINES=buildah", f"IMAGE_ARGS={volumes}"]
        call(["make", f"--directory={tree}", "image", *variables], environment)
        config = json.loads(call(["buildah", "inspect", "--type=image", NAME], environment))["OCIv1"]["config"]
        container = call(["buildah", "from", "--pull-never", NAME], environment).strip()
        yield Image(config, Path(call(["buildah", "mount", container], environment).strip()), environment)
    finally:
        shutil.rmtree(store)


def base_archive() -> Path:
    """Return the archive of Debian with Python, and build it if it isn't in the user's cache. Raises ImageError."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(" ".join(DEBIAN).encode()).hexdigest()[:16]
    archive = home / "kubevirt-scheduler" / f"base-{key}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete: another run may use the cache at the same time, and this run may be interrupted.
        partial = archive.with_suffix(f".{os.getpid()}.tar")
        try:
            call(["mmdebstrap", "--quiet", *DEBIAN, str(partial)])
            partial.rename(archive)
        finally:
            partial.unlink(missing_ok=True)
    return archive


def _buildah(store: Path) -> dict[str, str]:
    """Return the environment in which buildah needs no overlayfs and no cgroups, and touches no other image."""
    file = store / "storage.conf"
    settings = {"driver": "vfs", "graphroot": str(store / "layers"), "runroot": str(store / "run")}
    file.write_text("\n".join(["[storage]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]))
    others = {name: value for name, value in os.environ.items() if not name.startswith(("STORAGE_", "MAKE"))}
    return others | {"CONTAINERS_STORAGE_CONF": str(file), "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(store)}


def index_files(folder: Path) -> dict[str, str]:
    """Return this machine's CA certificates, and a file with its pip settings for the index, by their mount points."""
    settings = _pip_settings()
    bundle = settings.get("cert") or ssl.get_default_verify_paths().cafile or CERTIFICATES
    chosen = {key: settings[key] for key in INDEX_SETTINGS if key in settings} | {"cert": CERTIFICATES}
    file = folder / "pip.conf"
    file.touch(mode=0o600)  # the index URL may contain a password
    lines = [f"{key} = {value}".replace("\n", "\n  ") for key, value in chosen.items()]
    file.write_text("\n".join(["[global]", *lines, ""]))
    return {CERTIFICATES: str(bundle), PIP_CONF: str(file)}


def _pip_settings() -> dict[str, str]:
    """Return the pip settings of the configuration files and the environment; the environment takes precedence."""
    lines = call([sys.executable, "-m", "pip", "config", "list"]).splitlines()
    pairs = [line.partition("=") for line in sorted(lines, key=lambda line: line.startswith(":env:"))]
    return {key.rpartition(".")[2]: ast.literal_eval(value) for key, _, value in pairs}


def call(command: Sequence[str], environment: dict[str, str] | None = None, stdin: str = "") -> str:
    """Run a command and return its output. Raises ImageError."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(stdin, STEP_TIMEOUT)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # on interrupt or timeout, kill make's children too
            raise
    if process.returncode:
        last = "\n".join((out + err).splitlines()[-25:])
        raise ImageError(f"{' '.join(command[:3])} ended with status {process.returncode}\n{last}")
    return out
