"""Each advice of tests/advice.txt whose proof is a situation is followed literally on the real control plane."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.advised import OPT_IN, Situation
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import PRIORITY_CLASS, Longhorn
from tests.support.scenario import HOSTNAME, Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

AT_ONCE = 6
STOPS_THE_SCHEDULER = "a pin that cannot hold"
SITUATIONS: dict[str, Callable[[Situation], None]] = {}


def situation(function: Callable[[Situation], None]) -> Callable[[Situation], None]:
    SITUATIONS[function.__name__.replace("_", " ")] = function
    return function


# --- VMs that run apart from their storage ---


@situation
def apart_and_migratable(it: Situation) -> None:
    it.disk("vm", it.a)
    it.vm("vm", "vm", host=it.b)
    it.follow("vm", "Live-migrate it to ")
    it.ends("vm")


@situation
def apart_and_not_opted_in(it: Situation) -> None:
    it.disk("vm", it.a)
    it.vm("vm", "vm", host=it.b, opt_in=False)
    it.follow("vm", "opt the VM in: ")  # after the migration, so that it stays there at its next start
    it.ends("vm")
    it.run(f"virtctl restart vm -n {it.namespace}")
    it.ends("vm")


@situation
def apart_and_not_migratable(it: Situation) -> None:
    it.disk("vm", it.a)
    it.fixed("vm", "vm", host=it.b)
    it.follow("vm", "Restart the VM: ")
    it.ends("vm")


@situation
def apart_from_storage_on_a_full_node(it: Situation) -> None:
    it.disk("vm", it.a)
    it.fixed("vm", "vm", host=it.b)
    it.scenario.fill(it.a, memory="64Gi")
    it.follow("vm", "Stop the VM, and start it once its share-manager has stopped: ")
    it.ends("vm")


@situation
def apart_neither_opted_in_nor_migratable(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    it.fixed("vm", "vm", host=it.b, opt_in=False)
    it.follow("vm", "restart the VM: ")
    it.ends("vm")


@situation
def apart_and_run_once(it: Situation) -> None:
    it.disk("vm", it.a)
    it.fixed("vm", "vm", host=it.b, run="Once")
    it.follow("vm", "Restart the VM: kubectl delete vmi ")
    it.ends("vm")


@situation
def apart_and_managed_by_a_program(it: Situation) -> None:
    it.disk("vm", it.a)
    tracked = {"annotations": {"argocd.argoproj.io/tracking-id": "shop:kubevirt.io/VirtualMachine:shop/vm"}}
    it.fixed("vm", "vm", host=it.b, opt_in=False, about=tracked)
    change = it.merge("vm", "vm", {"spec": {"template": {"metadata": {"annotations": OPT_IN}}}})
    restart = f"virtctl restart vm -n {it.namespace}"
    it.follow("vm", "Annotate the VM's spec.template with ", change, restart)
    it.ends("vm")


@situation
def apart_while_it_migrates(it: Situation) -> None:
    it.disk("vm", it.a)
    it.vm("vm", "vm", host=it.b)
    it.migrations.seconds = math.inf
    it.run(f"virtctl migrate vm -n {it.namespace}")
    it.is_advised("vm", "Wait, and look again: ")
    it.migrations.seconds = 0.0
    it.ends("vm")


@situation
def only_prefers_its_storage(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    mode = {"kubevirt-scheduler/co-schedule-mode": "preferred"}
    it.fixed("vm", "vm", host=it.b, metadata={"annotations": mode})
    change = {"spec": {"template": {"metadata": {"annotations": dict.fromkeys(mode)}}}}
    restart = f"virtctl restart vm -n {it.namespace}"
    it.follow("vm", "remove the mode preferred", it.merge("vm", "vm", change), restart)
    it.ends("vm")


@situation
def a_vmi_without_a_vm(it: Situation) -> None:
    it.disk("vm", it.a)
    vmi = it.vmi("vm", host=it.b, opt_in=None)
    said = it.is_advised(vmi, "Annotate the VMI in its manifest with ")
    it.is_advised(vmi, "create it again")
    it.is_advised(vmi, "delete the VMI, and create it again")
    (delete,) = it.commands_of(said)
    it.run(delete)
    it.wait(lambda: not it.pods_of("vmi"), "the end of the pod")
    it.ends(it.vmi("vm"))


# --- stopped VMs, whose storage another pod uses ---


@situation
def stopped_and_not_opted_in(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    it.vm("vm", "vm", run="Halted", opt_in=False)
    it.follow("vm", "before the next start, opt the VM in: ")
    it.run(it.start("vm"))
    it.ends("vm")


@situation
def storage_on_a_cordoned_node(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    it.disk("other", it.a, user=it.b)
    it.vm("vm", "vm", run="Halted")
    it.vm("other", "other", run="Halted")
    it.run(f"kubectl cordon {it.a}")
    it.follow("other", "or stop all users", f"kubectl delete pod {it.backup} -n {it.namespace}", it.start("other"))
    it.ends("other")
    it.follow("vm", "Uncordon the node", f"kubectl uncordon {it.a}", it.start("vm"))
    it.ends("vm")


@situation
def storage_on_a_full_node(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    it.vm("vm", "vm", run="Halted")
    it.scenario.fill(it.a, memory="64Gi")
    it.follow("vm", "Free resources on the node", f"kubectl delete pod {it.filler} -n {it.namespace}", it.start("vm"))
    it.ends("vm")


@situation
def storage_on_a_tainted_node(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    it.vm("vm", "vm", run="Halted")
    it.run(f"kubectl taint node {it.a} team=db:NoSchedule")
    toleration = {"key": "team", "operator": "Exists", "effect": "NoSchedule"}
    change = it.merge("vm", "vm", {"spec": {"template": {"spec": {"tolerations": [toleration]}}}})
    it.follow("vm", "Add a toleration to the VM", change, it.start("vm"))
    it.ends("vm")


@situation
def storage_on_a_node_that_the_vm_does_not_select(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    it.vm("vm", "vm", run="Halted", nodeSelector={HOSTNAME: it.b})
    change = it.merge("vm", "vm", {"spec": {"template": {"spec": {"nodeSelector": None}}}})
    it.follow("vm", "Change the VM's nodeSelector", change, it.start("vm"))
    it.ends("vm")


@situation
def storage_beside_a_vm_that_repels(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    it.disk("other", it.a)
    label = {"labels": {"app": "db"}}
    it.vm("other", "other", host=it.a, metadata=label)
    term = {"labelSelector": {"matchLabels": label["labels"]}, "topologyKey": HOSTNAME}
    required, preferred = (f"{each}DuringSchedulingIgnoredDuringExecution" for each in ("required", "preferred"))
    it.vm("vm", "vm", run="Halted", affinity={"podAntiAffinity": {required: [term]}})
    softer = {required: None, preferred: [{"weight": 1, "podAffinityTerm": term}]}
    change = it.merge("vm", "vm", {"spec": {"template": {"spec": {"affinity": {"podAntiAffinity": softer}}}}})
    it.follow("vm", "Make the required pod (anti-)affinity preferred", change, it.start("vm"))
    it.ends("vm")


@situation
def a_field_that_the_guard_does_not_evaluate(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    selector = {"matchLabels": {"app": "db"}}
    spread = {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    it.vm("vm", "vm", run="Halted", topologySpreadConstraints=[spread])
    change = it.merge("vm", "vm", {"spec": {"template": {"spec": {"topologySpreadConstraints": None}}}})
    it.follow("vm", "Remove the named field", change, it.start("vm"))
    it.ends("vm")


@situation
def a_shared_claim_alone(it: Situation) -> None:
    it.disk("iso", it.a)
    it.scenario.add_volume("rwo", accessModes=["ReadWriteOnce"])
    it.scenario.wait_bound("rwo")
    it.vm("other", "iso", host=it.a)
    it.vm("vm", "rwo", "iso", run="Halted")
    annotation = {"kubevirt-scheduler/co-schedule-claim": "iso"}
    change = it.merge("vm", "vm", {"spec": {"template": {"metadata": {"annotations": annotation}}}})
    it.follow("vm", "name it in the annotation", change, it.start("vm"))
    it.ends("vm")


# --- VMs that can't start ---


@situation
def a_claim_that_does_not_exist(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    it.vm("vm", "dsik")
    volumes = [{"name": "disk", "persistentVolumeClaim": {"claimName": "vm"}}]
    change = it.merge("vm", "vm", {"spec": {"template": {"spec": {"volumes": volumes}}}})
    it.follow("vm", "Correct the claim's name in the VM", change, f"virtctl restart vm -n {it.namespace}")
    it.ends("vm")


@situation
def a_scheduler_that_does_not_run(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    it.vm("vm", "vm", schedulerName="no-such-scheduler")
    it.is_advised("vm", "no scheduler has evaluated the pod ")  # yet, and after 30 s for so long
    change = it.merge("vm", "vm", {"spec": {"template": {"spec": {"schedulerName": "default-scheduler"}}}})
    again = f"virtctl restart vm -n {it.namespace}"
    it.follow("vm", "Run the scheduler that the pod names", change, again)
    it.ends("vm")


@situation
def a_pin_that_cannot_hold(it: Situation) -> None:
    it.disk("vm", it.a, user=it.b)
    with it.plane.stopped_scheduler():
        it.vm("vm", "vm")
        it.wait(lambda: it.pods_of("vm"), "the pod")
        it.run(f"kubectl cordon {it.a}")
    said = it.is_advised("vm", "stop the VM, and start it once its pod is gone: ")
    stop, start = it.commands_of(said)
    it.run(stop)
    it.wait(lambda: not it.pods_of("vm"), "the end of the pod")
    it.run(start)
    it.ends("vm", "is gone", state="Apart")


@situation
def no_node_at_all(it: Situation) -> None:
    it.disk("vm", it.a, user=it.a)
    for node in it.a, it.b:
        it.run(f"kubectl cordon {node}")
    it.vm("vm", "vm")
    said = it.is_advised("vm", "Check why the scheduler finds no node: ")
    (describe,) = it.commands_of(said)
    assert "were unschedulable" in it.run(describe).stdout
    it.run(f"kubectl uncordon {it.a}")
    it.ends("vm")


# --- VMs whose storage isn't served ---


@situation
def a_share_manager_that_takes_minutes(it: Situation) -> None:
    volume = it.disk("vm", "", only=it.a)
    it.run(f"kubectl cordon {it.a}")
    it.scenario.create_consumer("vm", it.b)
    it.wait(lambda: it.longhorn.pod(volume), "the share-manager's pod")
    it.vm("vm", "vm", run="Halted")
    said = it.is_advised("vm", "find out why: ")
    describe = it.commands_in(next(line for line in said.splitlines() if "find out why" in line))[0]
    assert "were unschedulable" in it.run(describe.replace("VOLUME", volume)).stdout
    it.run(f"kubectl uncordon {it.a}")
    it.run(it.start("vm"))
    it.ends("vm")


@situation
def a_share_manager_without_a_node(it: Situation) -> None:
    volume = it.disk("vm", it.a, only=it.a)
    it.vm("vm", "vm", host=it.a)
    it.wait(lambda: it.explained("vm")["vm"]["state"] == "Together", "a VM beside its storage")
    it.run(f"kubectl cordon {it.a}")
    it.run(f"kubectl delete pod share-manager-{volume} -n {it.longhorn.namespace} --grace-period=0 --force")
    said = it.is_advised("vm", "Let a node run it: ")
    (describe,) = it.commands_of(said)
    assert "were unschedulable" in it.run(describe).stdout
    it.run(f"kubectl uncordon {it.a}")
    it.ends("vm")


@situation
def a_share_manager_whose_only_node_is_full(it: Situation) -> None:
    volume = it.disk("vm", it.a, only=it.a)
    it.vm("vm", "vm", host=it.b)
    it.wait(lambda: it.explained("vm")["vm"]["state"] == "Apart", "a VM apart from its storage")
    it.scenario.fill(it.a, PRIORITY_CLASS)  # a share-manager preempts pods of a lower priority
    it.run(f"""kubectl patch node {it.a} --subresource status -p '{{"status": {{"allocatable": {{"pods": "1"}}}}}}'""")
    it.run(f"kubectl delete pod share-manager-{volume} -n {it.longhorn.namespace} --grace-period=0 --force")
    (describe,) = it.commands_of(it.is_advised("vm", "Let a node run it: "))
    assert "Too many pods" in it.run(describe).stdout
    it.run(f"kubectl delete pod {it.filler} -n {it.namespace}")
    it.ends("vm", "Let a node run it", state="Apart")


@situation
def a_share_manager_whose_limits_match_no_node(it: Situation) -> None:
    volume = it.disk("vm", it.a, only=it.a)
    it.vm("vm", "vm", host=it.a)
    it.wait(lambda: it.explained("vm")["vm"]["state"] == "Together", "a VM beside its storage")
    it.scenario.limit("vm", HOSTNAME, "no-such-node")
    lost = f"kubectl delete pod share-manager-{volume} -n {it.longhorn.namespace} --grace-period=0 --force"
    it.run(lost)
    (describe,) = it.commands_of(it.is_advised("vm", "Let a node run it: "))
    assert "didn't match" in it.run(describe).stdout
    # StorageClasses can't be changed, and Longhorn reads one only when it creates the pod.
    it.scenario.limit("vm", HOSTNAME, it.a)
    it.run(lost)
    it.ends("vm")


@situation
def a_claim_that_is_not_bound(it: Situation) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    it.plane.request("POST", it.scenario.claims, {"metadata": {"name": "vm"}, "spec": spec})
    it.vm("vm", "vm", run="Halted")
    said = it.is_advised("vm", "Check why the claim is not bound: ")
    (describe,) = it.commands_in(next(line for line in said.splitlines() if "is not bound" in line))
    assert "no persistent volumes available" in it.wait(
        lambda: found if "Events:" in (found := it.run(f"{describe} -n {it.namespace}").stdout) else "", "the Events"
    )
    # The user makes the volume that the Events miss.
    claim = it.plane.request("GET", f"{it.scenario.claims}/vm")
    volume = f"vol-{it.namespace}-late"
    it.longhorn.provision_claim(claim, volume, f"pv-{volume}")
    it.scenario.volumes.append(volume)
    it.scenario.wait_bound("vm")
    it.run(it.start("vm"))
    it.ends("vm")


@pytest.fixture(scope="module")
def installed(plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path) -> Iterator[Webhook]:
    with ExitStack() as stack:
        webhook = Webhook(plane, "advised", kubeconfig, {"longhorn_namespace": longhorn.namespace})
        stack.enter_context(webhook).register()
        stack.callback(setattr, longhorn, "deletes_consumers", longhorn.deletes_consumers)
        longhorn.deletes_consumers = False  # VMs that are apart stay so
        scenario = stack.enter_context(closing(Scenario(plane, longhorn, None)))
        webhook.show_installed(*scenario.add_nodes(1))
        yield webhook


def test_each_advice_ends_its_situation_when_it_is_followed(
    installed: Webhook, plane: ControlPlane, longhorn: Longhorn
) -> None:
    wrong = dict[str, str]()

    def try_situation(name: str) -> None:
        with Situation(plane, longhorn, installed) as it:
            try:
                SITUATIONS[name](it)
                assert it.followed, "no advice was followed"
            except Exception as error:  # noqa: BLE001 (all situations are tried)
                wrong[name] = "\n".join([f"{name}: {error}", *it.log[-8:]])

    # In this thread, which lasts: a program ends with the thread that started it. And beside no other situation.
    try_situation(STOPS_THE_SCHEDULER)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(try_situation, SITUATIONS.keys() - {STOPS_THE_SCHEDULER}))
    assert not wrong, "\n\n".join(wrong.values())
