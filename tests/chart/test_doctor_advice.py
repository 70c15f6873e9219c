"""The advice of `doctor` is followed on a real API server, with the real Helm and kubectl, and its finding is gone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import crds
from tests.support.command_line import run_cli
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import CHART
from tests.support.helm_release import Release
from tests.support.kubevirt import install_crds
from tests.support.longhorn import Longhorn
from tests.support.scenario import Scenario
from tests.support.webhook_process import REGISTRATIONS

pytestmark = pytest.mark.controlplane

NAME, TWIN, NOWHERE = "doctor-advice", "doctor-advice-twin", "doctor-advice-nowhere"
KUBEVIRT = "doctor-advice-virtualization"
ACCOUNT = f"system:serviceaccount:{KUBEVIRT}:kubevirt-controller"
VERSION: Object = {
    "apiVersion": "longhorn.io/v1beta2",
    "kind": "Setting",
    "metadata": {"name": "current-longhorn-version"},
}
PODS: Object = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}


class Operator:
    """Somebody who does what `doctor` says."""

    def __init__(self, plane: ControlPlane, longhorn: Longhorn, release: Release) -> None:
        self.plane, self._release = plane, release
        self._last = list[dict[str, str]]()
        # No node may run the Deployment's pods: their replicas don't run.
        values = {
            "nodeSelector.no-node": "has-this",
            "settings.longhornNamespace": longhorn.namespace,
            "settings.kubevirtAccounts": f"{{{ACCOUNT}}}",
        }
        self.values = ",".join(f"{key}={value}" for key, value in values.items())

    def helm(self, verb: str, change: str = "", *, name: str = NAME) -> str:
        """Return a command of Helm for a release, with some values changed."""
        values = ",".join(filter(None, (self.values, change)))
        return f"helm {verb} {name} {CHART} -n {name} --create-namespace --set {shlex.quote(values)}"

    def run(self, command: str) -> None:
        """Run a command of Helm, of kubectl or of the product as the administrator."""
        program, *arguments = shlex.split(command)
        if program == "kubevirt-scheduler":
            assert run_cli(*arguments, "--kubeconfig", self.plane.kubeconfig).exit_code == 0, command
        else:
            {"helm": self.plane.helm, "kubectl": self.plane.kubectl}[program](*arguments)

    def findings(self, *options: str, kubeconfig: Path | None = None) -> list[dict[str, str]]:
        """Return what `doctor` finds, but what is in order."""
        chosen = options or ("--webhook-configuration", self._release.fullname)
        shown = run_cli("doctor", "-o", "json", "--kubeconfig", kubeconfig or self.plane.kubeconfig, *chosen)
        checks: list[dict[str, str]] = json.loads(shown.stdout)["checks"]
        self._last = [each for each in checks if each["level"] != "ok"]
        return self._last

    def is_advised(self, problem: str, advice: str, *options: str, kubeconfig: Path | None = None) -> None:
        """Wait until `doctor` finds a problem, and check that it gives this advice."""

        def advised() -> bool:
            said = self.findings(*options, kubeconfig=kubeconfig)
            return any(problem in each["finding"] and advice in each["advice"] for each in said)

        self._wait(advised, f"the finding {problem!r} with the advice {advice!r}")

    def ends(self, problem: str, *options: str) -> None:
        """Wait until `doctor` no longer finds a problem."""
        self._wait(
            lambda: not any(problem in each["finding"] for each in self.findings(*options)), f"no finding {problem!r}"
        )

    def _wait(self, predicate: Callable[[], bool], what: str) -> None:
        try:
            self.plane.wait(predicate, 60, what)
        except AssertionError as error:
            raise AssertionError(f"{what}; last findings: {json.dumps(self._last, indent=1)}") from error

    def follow(self, problem: str, advice: str, *commands: str) -> None:
        """Wait until `doctor` finds a problem, do what it advises, and wait until the problem is gone."""
        self.is_advised(problem, advice)
        for command in commands:
            self.run(command)
        self.ends(problem)


@pytest.fixture
def operator(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Operator]:
    """Somebody on a cluster without the chart, whose KubeVirt is in a namespace of its own."""
    install_crds(plane)
    crds.install(plane, crds.crd("KubeVirt"))
    core = f"/api/v1/namespaces/{plane.create_namespace(KUBEVIRT)}"
    yield Operator(plane, longhorn, Release(plane, NAME))
    for name in (NAME, TWIN):
        plane.helm("uninstall", name, "-n", name, "--ignore-not-found")
        plane.request("DELETE", f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
    plane.request("DELETE", core)


def upgrade(longhorn: Longhorn, version: str = "v1.10.2") -> str:
    """Return a command that does what an upgrade of Longhorn does to the setting with its version."""
    return merge("settings.longhorn.io", "current-longhorn-version", {"value": version}, "-n", longhorn.namespace)


def merge(kind: str, name: str, change: Object, *options: str) -> str:
    return f"kubectl patch {kind} {name} --type merge -p {shlex.quote(json.dumps(change))} {' '.join(options)}"


def test_each_finding_is_gone_after_its_advice_was_followed(
    operator: Operator, longhorn: Longhorn, plain_scenario: Scenario, kubeconfig: Path
) -> None:
    a, b = plain_scenario.add_nodes(2)
    of_the_installation(operator, kubeconfig)
    of_kubevirt(operator)
    of_longhorn(operator, longhorn)
    of_nodes(operator, plain_scenario, a, b)
    of_other_webhooks(operator)
    of_vms(operator, plain_scenario)


def operator_configuration(operator: Operator) -> str:
    return f"{REGISTRATIONS}/{Release(operator.plane, NAME).fullname}"


def of_the_installation(operator: Operator, kubeconfig: Path) -> None:
    """Somebody installs the chart, and objects of the release get lost."""
    fullname = Release(operator.plane, NAME).fullname
    lacks = "you lack rights to install the chart"
    operator.is_advised(lacks, "Install the chart as a user with these rights", "--pre", kubeconfig=kubeconfig)
    operator.ends(lacks, "--pre")  # as a user with these rights
    operator.follow(f"{fullname} not found", "Install the chart, or upgrade its release", operator.helm("install"))
    denied = "not checked: the API server responded with 403"
    operator.is_advised(denied, "Run the command as a user with this right", kubeconfig=kubeconfig)
    operator.ends(denied)  # as a user with this right
    operator.run(f"kubectl delete mutatingwebhookconfiguration {fullname}")
    operator.follow("does not call the webhook of Deployment", "an upgrade of the release", operator.helm("upgrade"))
    operator.run(f"kubectl delete deployment {fullname} -n {NAME}")
    operator.follow("no Deployment matches", "Repair the release: helm upgrade", operator.helm("upgrade"))
    operator.run(operator.helm("upgrade", "rbac.create=false"))
    restored = operator.helm("upgrade", "rbac.create=true")
    operator.follow("lacks rights: ", "Upgrade the release with rbac.create", restored)


def of_kubevirt(operator: Operator) -> None:
    """KubeVirt is installed after the chart, under another account than the chart's."""
    kubevirts = f"/apis/kubevirt.io/v1/namespaces/{KUBEVIRT}/kubevirts"
    operator.is_advised("KubeVirt is not installed", "Install KubeVirt", "--pre")
    kubevirt: Object = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}}
    operator.plane.request("POST", kubevirts, kubevirt)
    operator.ends("KubeVirt is not installed", "--pre")
    operator.is_advised("is in phase", "Wait until KubeVirt is in phase Deployed", "--pre")
    deployed = {"status": {"phase": "Deployed"}}
    operator.run(merge("kubevirt", "kubevirt", deployed, "-n", KUBEVIRT, "--subresource=status"))
    operator.ends("is in phase", "--pre")
    operator.is_advised("no virt-controller runs", "Check KubeVirt")
    core = f"/api/v1/namespaces/{KUBEVIRT}"
    pod: Object = {"metadata": {"name": "virt-controller-1", "labels": {"kubevirt.io": "virt-controller"}}}
    spec = {"containers": [{"name": "c", "image": "x"}], "serviceAccountName": "other", "nodeSelector": {"no": "node"}}
    operator.plane.request("POST", f"{core}/serviceaccounts", {"metadata": {"name": "other"}})
    operator.plane.request("POST", f"{core}/pods", pod | {"spec": spec})
    operator.ends("no virt-controller runs")
    account = f"settings.kubevirtAccounts={{system:serviceaccount:{KUBEVIRT}:other}}"
    operator.follow("the webhook ignores the VMs", "Set settings.kubevirtAccounts", operator.helm("upgrade", account))


def of_longhorn(operator: Operator, longhorn: Longhorn) -> None:
    """Longhorn has a version with a known bug, and the chart looks for it in another namespace."""
    absent = f"Longhorn is not installed in namespace {longhorn.namespace}"
    operator.is_advised(absent, "Install Longhorn, or set settings.longhornNamespace", "--pre")
    operator.plane.request("POST", longhorn.settings, VERSION | {"value": "v1.10.1"})
    operator.ends(absent, "--pre")
    # Longhorn writes its version into this setting.
    operator.follow("may stay in state attaching", "Upgrade Longhorn to 1.10.2 or newer", upgrade(longhorn))
    operator.run(upgrade(longhorn, "v1.6.0"))
    operator.follow("does not set PR_SET_IO_FLUSHER", "Upgrade it before VMs or containers write", upgrade(longhorn))
    operator.plane.request("DELETE", f"{longhorn.settings}/current-longhorn-version")
    operator.run(operator.helm("upgrade", f"settings.longhornNamespace={NOWHERE}"))
    wrong = f'namespace "{NOWHERE}" not found'
    operator.follow(wrong, "Set settings.longhornNamespace to Longhorn's namespace", operator.helm("upgrade"))


def of_nodes(operator: Operator, scenario: Scenario, a: str, b: str) -> None:
    """A node has a taint that outweighs the steering, or is full of pods, or is the only one."""
    operator.run(f"kubectl taint node {a} team=db:PreferNoSchedule")
    operator.follow("PreferNoSchedule taint: ", "remove the taint", f"kubectl taint node {a} team:PreferNoSchedule-")
    crowded, advice = "over 90% of their allocatable pods", "Move pods to other nodes, or raise the kubelet's maxPods"
    few, many = ({"status": {"allocatable": {"pods": number}}} for number in ("1", "110"))
    scenario.fill(b, cpu="1m")
    pods = operator.plane.request("GET", scenario.pods)["items"]
    (filler,) = [name for pod in pods if (name := pod["metadata"]["name"]).startswith("filler-")]
    for cure in (
        merge("node", b, many, "--subresource=status"),
        f"kubectl delete pod {filler} -n {scenario.namespace}",
    ):
        operator.run(merge("node", b, few, "--subresource=status"))  # the kubelet reports its maxPods
        operator.follow(crowded, advice, cure)
    operator.run(merge("node", b, many, "--subresource=status"))
    operator.run(operator.helm("upgrade", "replicas=2"))
    operator.run(f"kubectl cordon {b}")
    one = operator.helm("upgrade", "replicas=1")
    operator.follow("only one schedulable node", "On one node, set replicas=1", one)
    operator.run(f"kubectl uncordon {b}")


def of_other_webhooks(operator: Operator) -> None:
    """The chart is installed twice, and another webhook changes pods after this one."""
    operator.run(operator.helm("install", name=TWIN))
    uninstall = f"helm uninstall {TWIN} -n {TWIN}"
    operator.follow("installed more than once", "Uninstall one of the releases", uninstall)
    client: Object = {"service": {"namespace": "default", "name": "nobody"}}
    later = {"name": "later.example.com", "clientConfig": client, "rules": [PODS], "failurePolicy": "Ignore"}
    later |= {"sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1}
    later |= {"namespaceSelector": {"matchLabels": {"no": "namespace"}}}
    operator.plane.request("POST", REGISTRATIONS, {"metadata": {"name": "zz-later"}, "webhooks": [later]})
    own = operator.plane.request("GET", operator_configuration(operator))["webhooks"]
    policies = {value: [{**each, "reinvocationPolicy": value} for each in own] for value in ("Never", "IfNeeded")}
    name = Release(operator.plane, NAME).fullname
    never, if_needed = (merge("mutatingwebhookconfiguration", name, {"webhooks": each}) for each in policies.values())
    operator.run(never)
    operator.follow("calls other webhooks for pods after this one", "Set reinvocationPolicy: IfNeeded", if_needed)
    operator.plane.request("DELETE", f"{REGISTRATIONS}/zz-later")


def of_vms(operator: Operator, scenario: Scenario) -> None:
    """An opted-in VM is in a namespace that the configuration doesn't select. The opt-in of another has a mistake."""
    vms = f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}/virtualmachines"
    metadata = {"annotations": {"kubevirt-scheduler/co-schedule": "true"}}
    spec = {"runStrategy": "Halted", "template": {"metadata": metadata, "spec": {}}}
    vm: Object = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"}, "spec": spec}
    operator.plane.request("POST", vms, vm)
    own = operator.plane.request("GET", operator_configuration(operator))["webhooks"]
    selector = {"namespaceSelector": {"matchLabels": {"no": "namespace"}}}
    name = Release(operator.plane, NAME).fullname
    operator.run(merge("mutatingwebhookconfiguration", name, {"webhooks": [{**each, **selector} for each in own]}))
    selected = merge("mutatingwebhookconfiguration", name, {"webhooks": own})
    operator.follow("does not call the webhook for opted-in VMs", "Change webhook.namespaceSelector", selected)
    wrong: Object = {"name": "wrong", "annotations": metadata["annotations"]}
    spec = {"runStrategy": "Halted", "template": {"metadata": {}, "spec": {}}}
    operator.plane.request("POST", vms, vm | {"metadata": wrong, "spec": spec})
    opt_in = f"kubevirt-scheduler opt-in wrong -n {scenario.namespace} --yes"
    operator.follow("VMs with a mistake in their opt-in", opt_in, opt_in)
    operator.plane.request("DELETE", vms)
