"""The container image: its contents, its file permissions, and a server that runs as Kubernetes would run it."""

import configparser
import json
import os
import re
import select
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.image.image import ROOT, Image, call
from tests.support.server_process import TIMEOUT, ServerProcess, parse_ready_line, write_cluster
from webhook import __version__
from webhook.commands.benchmark.plan import PROBE
from webhook.commands.serve import serve

pytestmark = [pytest.mark.image, pytest.mark.needs("buildah", "mmdebstrap")]

USER = 65532
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
# The modules that `serve` imports, for a snapshot and for a live cluster.
IMPORTS = "import webhook.commands.serve, webhook.cluster.backend, certs.serving"


# The root is read-only, /dev is as in a container runtime, /dev/shm is memory, and the user can't gain privileges.
# $1: the root; $2: the folder that is mounted at /mnt; $3: user and group; the command follows.
MOUNTS = """
set -e
mount --bind "$1" "$1"
mount --bind "$2" "$1/mnt"
mount -o remount,bind,ro "$1/mnt"
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=0755 dev "$1/dev"
for device in null zero urandom; do
    : > "$1/dev/$device"
    mount --bind "/dev/$device" "$1/dev/$device"
done
mkdir "$1/dev/shm"
mount -t tmpfs -o mode=1777,size=64m shm "$1/dev/shm"
mount -o remount,bind,ro "$1"
root=$1 user=$3
shift 3
exec setpriv --no-new-privs /usr/sbin/chroot --userspec="$user" "$root" "$@"
"""
# The program is process 1, as in a pod. It must die with the tests. A process that changes its user loses
# PR_SET_PDEATHSIG, so the outer PID namespace kills it: a PID namespace always ends with its first process.
OUTER = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"]
INNER = ["unshare", "--mount", "--pid", "--fork", "/bin/sh", "-c", MOUNTS, "mounts"]


def _command(image: Image, files: Path, *arguments: str) -> list[str]:
    return [*OUTER, *INNER, str(image.root), str(files), image.user, *arguments]


def run_command(image: Image, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a container and wait for its exit."""
    command = _command(image, image.root / "mnt", *arguments)
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT, env=image.environment)


@dataclass
class ContainerServer(ServerProcess):
    """A server in a container. `pid` is its process ID on the host; inside, it is process 1."""

    pid: int

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(TIMEOUT)


@contextmanager
def run_container(image: Image, folder: Path) -> Iterator[ContainerServer]:
    """Run the image's default command on free loopback ports, and wait until it is ready."""
    files, log_file = folder / "files", folder / "log"
    files.mkdir()
    files.chmod(0o755)  # the container's user reads it
    options = [f"--snapshot=/mnt/{write_cluster(files).name}", "--bind=127.0.0.1", "--https-port=0", "--http-port=0"]
    command = _command(image, files, *image.config["Entrypoint"], *image.config["Cmd"], *options)
    with (
        log_file.open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=image.environment) as process,
    ):
        try:
            yield _ready(process, log_file)
        finally:
            process.kill()


def _ready(process: subprocess.Popen[str], log_file: Path) -> ContainerServer:
    assert process.stdout
    assert select.select([process.stdout], [], [], TIMEOUT)[0], f"not ready in time: {log_file.read_text()}"
    line = process.stdout.readline()
    assert line, f"the server did not start: {log_file.read_text()}"
    pid = _child(_child(process.pid))
    return ContainerServer(**vars(parse_ready_line(process, json.loads(line), log_file)), pid=pid)


def _child(pid: int) -> int:
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@pytest.fixture
def server(image: Image, tmp_path: Path) -> Iterator[ContainerServer]:
    with run_container(image, tmp_path) as server:
        yield server


def writable(root: Path) -> Iterator[str]:
    """The files that the image's user may write, by owner and mode. Symlinks are skipped; their targets are visited."""
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *files)):
            status = path.lstat()
            if not path.is_symlink() and (USER in (status.st_uid, status.st_gid) or status.st_mode & 0o002):
                yield f"{path.relative_to(root)} {status.st_mode:o}"


def test_without_an_engine_make_image_names_a_package_to_install():
    command = ["make", "--no-print-directory", "image", "ENGINES=no-such-engine"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT)
    assert result.returncode
    assert "none of these works here: no-such-engine; install one" in result.stderr.splitlines()[0]


def test_the_image_config_suits_kubernetes(image):
    assert image.config["User"] == f"{USER}:{USER}"  # numeric: the kubelet can't check runAsNonRoot against a name
    assert image.config["Entrypoint"] == ["kubevirt-scheduler"]
    defaults = {option.name: option.default for option in serve.params}
    assert set(image.config["ExposedPorts"]) == {f"{defaults[f'{name}_port']}/tcp" for name in ("https", "http")}
    # Docker's image format has a HEALTHCHECK, OCI's has none. Kubernetes uses its own probes.
    assert not re.search("^HEALTHCHECK", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_the_labels_match_setup_cfg_and_git(image, tree):
    labels = {key.rpartition(".")[2]: value for key, value in image.config["Labels"].items()}
    metadata = SETUP["metadata"]
    assert labels["title"] == metadata["name"]
    assert labels["description"] == metadata["description"]
    assert labels["licenses"] == metadata["license"]
    assert labels["version"] == __version__
    assert labels["revision"] == call(["git", "-C", str(tree), "rev-parse", "HEAD"]).strip()


def test_the_image_contains_exactly_the_packages_of_the_lock(image):
    script = "import importlib.metadata as m; print(*(f'{d.name.lower()}=={d.version}' for d in m.distributions()))"
    locked = re.findall(r"^(\S+==\S+)", (ROOT / "requirements-image.lock").read_text(), re.MULTILINE)
    installed = run_command(image, "python3", "-I", "-c", script).stdout.replace("_", "-").split()
    assert sorted(installed) == sorted([*locked, f"kubevirt-scheduler=={__version__}"])


def test_each_package_of_the_image_has_a_wheel_for_arm64(tmp_path):
    """The release builds the image for amd64 and arm64. This machine builds it for one of them."""
    tags = [
        f"--platform={tag}" for tag in ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64")
    ]
    locked = ["--require-hashes", "--no-deps", "--only-binary=:all:", "--requirement=requirements-image.lock"]
    call([sys.executable, "-m", "pip", "download", "--python-version=3.13", *tags, *locked, f"--dest={tmp_path}"])
    assert any("aarch64" in wheel.name for wheel in tmp_path.glob("*.whl"))


@pytest.mark.parametrize("python", ["/opt/kubevirt-scheduler/bin/python3", "/usr/bin/python3"])
def test_the_image_contains_no_installer(image, python):
    for module in "pip", "setuptools", "ensurepip":
        assert f"No module named '{module}'" in run_command(image, python, "-c", f"import {module}").stderr
    assert not [*image.root.rglob("pip-*"), *image.root.rglob("setuptools-*")]


def test_the_user_can_write_no_file(image):
    assert list(writable(image.root)) == []


def test_the_command_needs_no_shell_and_startup_compiles_no_module(image):
    assert run_command(image, "kubevirt-scheduler", "--version").stdout == f"kubevirt-scheduler {__version__}\n"
    script = image.root / "opt/kubevirt-scheduler/bin/kubevirt-scheduler"
    assert script.read_text().startswith("#!/opt/kubevirt-scheduler/bin/python")
    log = run_command(image, "python3", "-v", "-c", IMPORTS).stderr
    assert "import 'webhook.commands.serve'" in log
    # Python quotes the path if it read a .pyc, and doesn't if it compiled the source.
    assert re.findall("^# code object from (/.*)$", log, re.MULTILINE) == []


def test_the_image_has_no_client_that_reads_kubeconfigs_and_says_so(image):
    report = run_command(image, "kubevirt-scheduler", "report", "--kubeconfig", "/nowhere")
    assert "reading a kubeconfig requires the Python package kubernetes" in report.stderr
    outside = run_command(image, "kubevirt-scheduler", "recolocate", "-A")
    assert "not running in a pod" in outside.stderr


def test_the_image_runs_the_probe_of_benchmark(image):
    *command, _file, _result, _seconds = PROBE
    shrunk = f"import {command[-1]} as probe; probe.FILE_SIZE = 2**20; print(probe.run('/dev/shm/disk', 0.05))"
    found = json.loads(run_command(image, command[0], "-c", shrunk).stdout)
    assert len(found["figures"]) == 4


def test_the_server_runs_unprivileged_on_a_read_only_root_and_answers_until_sigterm(server):
    process = Path(f"/proc/{server.pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    assert status["NSpid"].split()[-1] == "1"
    assert {*status["Uid"].split(), *status["Gid"].split()} == {str(USER)}
    assert (int(status["CapEff"], 16), status["NoNewPrivs"]) == (0, "1")
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    assert [one[5].split(",")[0] for one in mounts if one[4] == "/"] == ["ro"]
    response = server.review()
    assert response["auditAnnotations"]["outcome"] == "pinned"
    assert response["patch"]
    assert [server.probe(path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
    with pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(server.connect_tcp(), server_hostname="127.0.0.1")
    assert server.stop() == 0
    assert not process.exists()
