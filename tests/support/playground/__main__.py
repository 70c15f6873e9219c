"""Run the playground until Ctrl-C: `python -m tests.support.playground FILE` writes the shell variables to FILE.

No kubelet runs here: kwok marks every pod as running. Only the replicas of the chart's release are real processes.
"""

from __future__ import annotations

import fcntl
import http.client
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.controlplane import build
from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import ProcessError
from tests.support.longhorn import Longhorn
from tests.support.playground.simulation import KubeVirts, Probes, Provisioner, show_installation
from tests.support.reconcile_loop import TICK, Changes
from tests.support.release_pods import ReleasePods
from tests.support.scenario import Scenario
from tests.support.webhook_process import PROGRAM

NODES = {"node-a": "64Gi", "node-b": "32Gi", "node-c": "8Gi"}  # sizes differ, so the scheduler's choices are repeatable
READY = """\
The cluster runs: nodes {nodes}, namespace {namespace}.
Open a second terminal in this folder, and run:

    . {file}

Ctrl-C stops the cluster and deletes it.
"""


def write_workstation(folder: Path, plane: ControlPlane, namespace: str, file: Path) -> None:
    """Write the reader's programs and kubeconfig to the folder, and the variables that select them to the file."""
    programs = folder / "bin"
    programs.mkdir()
    virtctl = Path(__file__).with_name("virtctl")
    plugin = (PROGRAM.with_name("kubectl-coschedule"), PROGRAM.with_name("kubectl_complete-coschedule"))
    for program in plane.binaries["kubectl"], plane.binaries["helm"], PROGRAM, *plugin, virtctl:
        programs.joinpath(program.name).symlink_to(program)
    kubeconfig = plane.write_kubeconfig(folder / "workstation-kubeconfig", namespace=namespace)
    file.write_text(f"export KUBECONFIG='{kubeconfig}'\nexport PATH='{programs}':\"$PATH\"\n")


@contextmanager
def running_cluster(plane: ControlPlane) -> Iterator[tuple[Scenario, KubeVirts, Provisioner, Probes, ReleasePods]]:
    """Create the nodes, and run the simulated parts that have their own thread."""
    longhorn = Longhorn(plane, deletes_consumers=False)  # LONGHORN_VERSION
    longhorn.install()
    scenario = Scenario(plane, longhorn, None, namespace="shop")
    for node, memory in NODES.items():
        scenario.add_node(node, memory=memory)
    scenario.wait_ready(NODES)
    with ExitStack() as stack:
        longhorn.start()
        stack.callback(longhorn.stop)
        kubevirts = KubeVirts(scenario)
        stack.callback(kubevirts.stop)
        show_installation(plane)
        release = ReleasePods(scenario)
        stack.callback(release.stop)
        yield scenario, kubevirts, Provisioner(scenario), Probes(scenario), release


@contextmanager
def only_one(file: Path) -> Iterator[None]:
    """Exit if another playground has written this file, which its terminals source."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"A playground of this folder already runs. To use it: . {file}")
        yield


def run(file: Path) -> None:
    build.binaries()  # takes minutes on the first run of a machine and prints its own progress
    with ExitStack() as stack:
        stack.enter_context(only_one(file))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="playground-")))
        plane = stack.enter_context(ControlPlane(folder))
        scenario, *parts = stack.enter_context(running_cluster(plane))
        write_workstation(folder, plane, scenario.namespace, file)
        stack.callback(file.unlink, missing_ok=True)
        print(READY.format(nodes=", ".join(NODES), namespace=scenario.namespace, file=file), flush=True)
        changes = Changes(plane)
        while True:
            time.sleep(TICK)
            for part in parts if changes.are_due() else ():
                try:
                    part.reconcile()
                except (ApiError, ProcessError, OSError, AssertionError, http.client.HTTPException) as error:
                    print(f"{type(part).__name__}: {error}; trying again", file=sys.stderr, flush=True)
                    time.sleep(5)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background job, it would be ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by a signal"))  # so that the folder is deleted too
    with suppress(KeyboardInterrupt):
        run(Path(sys.argv[1]))
