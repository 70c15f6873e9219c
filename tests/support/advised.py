"""A situation in which the product gives advice, on the real control plane: its VMs, what is said, and what is done.

Each situation has its own namespace and nodes, so that several are followed at once.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

from tests.support.command_line import Shown, run_line
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.kubevirt import vm_path
from tests.support.longhorn import Longhorn
from tests.support.migration_controller import MigrationController
from tests.support.paths import ROOT
from tests.support.playground.simulation import KubeVirt
from tests.support.scenario import POOL, Scenario
from tests.support.virt_controller import _Vm
from tests.support.webhook_process import PROGRAM, Webhook

OPT_IN = {"kubevirt-scheduler/co-schedule": "true"}
# A command in a sentence ends before its punctuation.
COMMAND = re.compile(r"\b(?:kubectl|virtctl|kubevirt-scheduler) [a-z][^,:;]*?(?=[,:;]|\.(?:\s|$)|$)")
PATIENCE = 60  # seconds

_IN_PROCESS = threading.Lock()


class Launchers(KubeVirt):
    """A virt-controller that renders the fields of a template which decide where a pod may run."""

    def __init__(self, scenario: Scenario, hosts: dict[str, str]) -> None:
        super().__init__(scenario, back_off=1)
        self._hosts = hosts

    def _owned_pod(self, name: str, vm: _Vm) -> Object:
        pod = super()._owned_pod(name, vm)
        template = self.vm(name)["spec"]["template"]
        spec, pod_spec = template["spec"], pod["spec"]
        pod["metadata"]["labels"] |= template["metadata"].get("labels", {})
        pod_spec["nodeSelector"] |= {POOL: self._scenario.namespace} | spec.get("nodeSelector", {})
        pod_spec["tolerations"] = [*pod_spec.get("tolerations", []), *spec.get("tolerations", [])]
        pod_spec |= {key: spec[key] for key in ("topologySpreadConstraints",) if key in spec}
        repels = {key: value for key, value in spec.get("affinity", {}).items() if key == "podAntiAffinity"}
        pod_spec["affinity"] = pod_spec.get("affinity", {}) | repels
        if node := self._hosts.pop(name, ""):
            pod_spec["nodeName"] = node
        return pod


class Situation:
    """One situation, with two nodes, `a` and `b`. `with Situation(...) as it` runs its KubeVirt."""

    def __init__(self, plane: ControlPlane, longhorn: Longhorn, webhook: Webhook) -> None:
        self.plane, self.longhorn, self._webhook = plane, longhorn, webhook
        self.followed = set[str]()  # the pieces of advice
        self.hosts: dict[str, str] = {}  # a VM's first pod is bound there
        self.log = list[str]()

    def __enter__(self) -> Situation:
        with ExitStack() as stack:
            self.scenario = Scenario(self.plane, self.longhorn, self._webhook)
            stack.callback(self.scenario.close)
            self.namespace = self.scenario.namespace
            self.a, self.b = self.scenario.add_nodes(2)
            self.migrations = stack.enter_context(MigrationController(self.scenario, 0.3))
            self.kubevirt = stack.enter_context(Launchers(self.scenario, self.hosts))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- what is there ---

    def disk(self, claim: str, node: str, *, user: str = "", only: str = "") -> str:
        """Create a volume whose first share-manager runs on a node, and each on the node `only`.

        A backup on the node `user` uses it.
        """
        volume = self.scenario.add_volume(claim, node=only)
        if node:
            self.longhorn.first_nodes[volume] = node
        self.scenario.wait_bound(claim)
        if user:
            self.backup = self.scenario.create_consumer(claim, user)
            self.scenario.wait_share_manager(volume, claim)
        return volume

    def vm(self, name: str, *claims: str, host: str = "", run: str = "Always", opt_in: bool = True, **spec: Any) -> str:
        """Create a VM, by default opted in. Its first pod is bound to `host`, and it runs then."""
        volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
        metadata = spec.pop("metadata", {})
        metadata |= {"annotations": metadata.get("annotations", {}) | (OPT_IN if opt_in else {})}
        about = {"name": name} | spec.pop("about", {})
        vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": about}
        template = {"metadata": metadata, "spec": {"volumes": volumes} | spec}
        if host:
            self.hosts[name] = host
        self.plane.request("POST", vm_path(self.scenario), vm | {"spec": {"runStrategy": run, "template": template}})
        if host:
            self.wait_runs(name)
        return name

    def vmi(self, claim: str, host: str = "", opt_in: str | None = "true") -> str:
        """Create a VMI without a VM, and its pod. Return its name once it runs."""
        pod = self.scenario.vm_pod("vmi", claim, opt_in=opt_in, **({"nodeName": host} if host else {}))
        name = self.scenario.create(pod)
        self.scenario.wait_running(name, PATIENCE)
        (owner,) = self.scenario.get(name)["metadata"]["ownerReferences"]
        path = vm_path(self.scenario).removesuffix("s") + f"instances/{owner['name']}"
        self.plane.request("PATCH", f"{path}/status", {"status": {"phase": "Running"}})
        return str(owner["name"])

    def fixed(self, name: str, *claims: str, **options: Any) -> str:
        """Create a VM that can't migrate."""
        return self.vm(name, *claims, domain={"devices": {"hostDevices": [{"name": "gpu"}]}}, **options)

    def wait(self, predicate: Callable[[], Any], what: str) -> Any:
        return self.plane.wait(predicate, PATIENCE, what)

    def pods_of(self, name: str) -> list[Object]:
        path = f"{self.scenario.pods}?labelSelector=vm.kubevirt.io/name%3D{name}"
        found: list[Object] = self.plane.request("GET", path)["items"]
        return [pod for pod in found if pod["status"].get("phase") not in ("Succeeded", "Failed")]

    @property
    def filler(self) -> str:
        """Return the name of the pod that fills a node."""
        pods = self.plane.request("GET", self.scenario.pods)["items"]
        (name,) = [name for pod in pods if (name := pod["metadata"]["name"]).startswith("filler-")]
        return str(name)

    def wait_runs(self, name: str) -> None:
        """Wait until a VMI runs."""
        path = vm_path(self.scenario).removesuffix("s") + f"instances/{name}"

        def runs() -> bool:
            return bool((self.plane.find(path) or {}).get("status", {}).get("phase") == "Running")

        self.wait(runs, f"VM {name} running")

    # --- what is said, and what is done ---

    def run(self, command: str) -> Shown:
        """Run a command as a user does."""
        programs = {self.plane.binaries["kubectl"].parent, PROGRAM.parent, ROOT / "tests/support/playground"}
        path = ":".join([*map(str, programs), os.environ["PATH"]])
        environment = os.environ | {"PATH": path, "KUBECONFIG": str(self.plane.kubeconfig)}
        runs_here = command.startswith("kubevirt-scheduler ") and "2>" not in command
        with _IN_PROCESS if runs_here else nullcontext():
            ended = run_line(command, environment, ROOT)
        if not command.endswith("-o json"):
            self.log.append(f"$ {command}\n{ended.stdout[-300:]}{ended.stderr[-300:]}[{ended.exit_code}]")
        assert ended.exit_code == 0, f"{command}: {ended.stdout[-300:]}{ended.stderr}"
        return ended

    def explained(self, vm: str) -> Any:
        """Return what `explain` says of a VM. Its key `vm` is the VM in `report`."""
        (found,) = json.loads(self.run(f"kubevirt-scheduler explain vm {vm} -n {self.namespace} -o json").stdout)
        return found

    def said(self, explained: Any) -> str:
        """Return the advice of `explain` and `report`, a line each."""
        findings = [each["text"] for step in explained["steps"] for each in step["findings"]]
        said = "\n".join([*explained["advice"], explained["vm"]["nextStep"], *findings])
        self.log[:] = [*(line for line in self.log if not line.startswith("said: ")), f"said: {explained['advice']}"]
        return said

    def is_advised(self, vm: str, advice: str) -> str:
        """Wait until an advice is given about a VM, and return what is said. It counts as followed from now on."""
        self.followed.add(advice)

        def words() -> str:
            said = self.said(self.explained(vm))
            return said if advice.lower() in said.lower() else ""

        return str(self.wait(words, f"the advice {advice!r}"))

    def follow(self, vm: str, advice: str, *commands: str) -> None:
        """Wait until an advice is given, and run its commands: those that it names, or else these."""
        said = self.is_advised(vm, advice)
        for command in commands or self.commands_of(said):
            self.run(f"{command} 2>&1" if "recolocate" in command else command)

    def commands_of(self, said: str) -> list[str]:
        """Return the commands of an advice, which is the first line of what was said."""
        return self.commands_in(said.partition("\n")[0])

    @staticmethod
    def commands_in(sentence: str) -> list[str]:
        found = COMMAND.findall(sentence)
        assert found, sentence
        return found

    def merge(self, kind: str, name: str, change: Any) -> str:
        """Return the kubectl command that merges a change into an object of this namespace."""
        return f"kubectl patch {kind} {name} -n {self.namespace} --type merge -p '{json.dumps(change)}'"

    def start(self, vm: str) -> str:
        return f"virtctl start {vm} -n {self.namespace}"

    def ends(self, vm: str, *gone: str, state: str = "Together") -> None:
        """Wait until a VM runs in this state, and nothing that was advised is said any more."""

        def is_as_promised() -> bool:
            explained = self.explained(vm)
            said = self.said(explained).lower()
            return explained["vm"]["state"] == state and not any(each.lower() in said for each in gone or self.followed)

        self.wait(is_as_promised, f"VM {vm} {state}, without the advice")
        self.wait_runs(vm)
