"""The image: what is in it, what may be done in it, and that it answers as Kubernetes runs it. Built once for all."""

import configparser
import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.image import ROOT, Image, built
from tests.support.image_container import Contained, contained, run
from tests.support.server_process import IN_TIME
from webhook import __version__
from webhook.commands.serve import serve

pytestmark = pytest.mark.image

USER = 65532
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
# What `serve` imports, on a snapshot and on a live cluster.
PROGRAM = "import webhook.commands.serve, webhook.follow, certs.serving"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with built(tmp_path_factory.mktemp("image")) as image:
        yield image


@pytest.fixture
def server(image: Image, tmp_path: Path) -> Iterator[Contained]:
    with contained(image, tmp_path) as server:
        yield server


def writable(root: Path) -> Iterator[str]:
    """What the user of the image may write, by its owner and mode: a link can't be, what it leads to is seen itself."""
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *files)):
            status = path.lstat()
            if not path.is_symlink() and (USER in (status.st_uid, status.st_gid) or status.st_mode & 0o002):
                yield f"{path.relative_to(root)} {status.st_mode:o}"


def test_without_an_engine_make_image_says_what_to_install():
    command = ["make", "--no-print-directory", "image", "ENGINES=no-such-engine"]
    made = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=IN_TIME)
    assert made.returncode
    assert "none of these works here: no-such-engine; install one" in made.stderr.splitlines()[0]


def test_what_kubernetes_reads_of_it(image):
    assert image.config["User"] == f"{USER}:{USER}"  # a number, or runAsNonRoot could not be judged
    assert image.config["Entrypoint"] == ["kubevirt-scheduler"]
    defaults = {option.name: option.default for option in serve.params}
    assert set(image.config["ExposedPorts"]) == {f"{defaults[f'{name}_port']}/tcp" for name in ("https", "http")}
    # The OCI's format has no place for one, but docker's has; Kubernetes probes by itself.
    assert not re.search("^HEALTHCHECK", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_its_labels_say_what_setup_cfg_and_git_say(image):
    labels = {key.rpartition(".")[2]: value for key, value in image.config["Labels"].items()}
    metadata = SETUP["metadata"]
    assert labels["title"] == metadata["name"]
    assert labels["description"] == metadata["description"]
    assert labels["licenses"] == metadata["license"]
    assert labels["version"] == __version__
    assert re.fullmatch("[0-9a-f]{40}(-dirty)?", labels["revision"])


def test_it_holds_what_the_lock_names_and_nothing_else(image):
    script = "import importlib.metadata as m; print(*(f'{d.name.lower()}=={d.version}' for d in m.distributions()))"
    locked = re.findall(r"^(\S+==\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    installed = run(image, "python3", "-I", "-c", script).stdout.replace("_", "-").split()
    assert sorted(installed) == sorted([*locked, f"kubevirt-scheduler=={__version__}"])


@pytest.mark.parametrize("module", ["pip", "setuptools", "ensurepip"])
@pytest.mark.parametrize("python", ["/opt/kubevirt-scheduler/bin/python3", "/usr/bin/python3"])
def test_nothing_in_it_installs(image, python, module):
    asked = run(image, python, "-c", f"import {module}")
    assert f"No module named '{module}'" in asked.stderr


def test_no_pip_waits_in_a_wheel(image):
    assert not [*image.root.rglob("pip-*"), *image.root.rglob("setuptools-*")]


def test_its_user_may_write_nothing(image):
    assert list(writable(image.root)) == []


def test_nothing_is_compiled_when_it_starts(image):
    told = run(image, "python3", "-v", "-c", PROGRAM).stderr
    assert "import 'webhook.commands.serve'" in told
    # In quotes what was read from a .pyc; without, what had to be compiled.
    assert re.findall("^# code object from (/.*)$", told, re.MULTILINE) == []


def test_its_command_is_on_the_path_and_needs_no_shell(image):
    assert run(image, "kubevirt-scheduler", "--version").stdout == f"kubevirt-scheduler {__version__}\n"
    script = image.root / "opt/kubevirt-scheduler/bin/kubevirt-scheduler"
    assert script.read_text().startswith("#!/opt/kubevirt-scheduler/bin/python")


def test_it_runs_as_process_1_without_rights_on_a_read_only_root(server):
    process = Path(f"/proc/{server.pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    assert status["NSpid"].split()[-1] == "1"
    assert {*status["Uid"].split(), *status["Gid"].split()} == {str(USER)}
    assert (int(status["CapEff"], 16), status["NoNewPrivs"]) == (0, "1")
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    assert [one[5].split(",")[0] for one in mounts if one[4] == "/"] == ["ro"]


def test_it_answers_reviews_and_probes(server):
    response = server.review()
    assert response["auditAnnotations"]["outcome"] == "pinned"
    assert response["patch"]
    assert [server.probe(path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3


def test_who_does_not_know_its_ca_does_not_trust_it(server):
    with pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(server.plain(), server_hostname="127.0.0.1")


def test_its_key_is_in_memory_alone(server):
    assert server.ca.parent.parent == Path(f"/proc/{server.pid}/root/dev/shm")


def test_sigterm_ends_it_well_and_nothing_is_left(server):
    mine = Path(f"/proc/{server.pid}")
    assert server.stop() == 0
    assert not mine.exists()
