"""What users rely on, on a whole cluster. `make test-live` runs these scenarios on yours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pytest

from tests.live.cluster import Cluster, Object
from tests.live.namespace import ENDING, LABEL, Namespace, decision, node_of, uid
from tests.support.paths import ROOT
from webhook.commands.benchmark.plan import LABEL as BENCHMARK

pytestmark = pytest.mark.controlplane
Seen = Callable[[str, object], None]  # record_property("seen", ...) writes the last column of the table


@pytest.mark.skipif(os.environ.get("LIVE") == "1", reason="needs an empty cluster")
@pytest.mark.parametrize(("first", "second"), [ENDING, ENDING[::-1]], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_in_the_middle_of_a_scenario_leaves_nothing_behind(
    cluster: Cluster, tmp_path: Path, first: int, second: int
) -> None:
    # A background job of a shell ignores SIGINT, and so do its children, unless `env` restores the default.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "pytest", "-s", __file__, "-k", "drained"]
    command.append(f"--override-ini=cache_dir={tmp_path}")
    environment = dict(cluster.environment) | {"LIVE": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        begin = list(takewhile(lambda line: "draining" not in line, process.stdout))
        process.send_signal(first)  # at once: a drain takes seconds
        begin += takewhile(lambda line: "deleting live-" not in line, process.stdout)
        process.send_signal(second)
        end = process.stdout.read()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, "".join([*begin, end])
    assert "| interrupted |" in end
    assert cluster.items("namespaces", "-l", LABEL) == []
    assert cluster.items("pv") == []
    assert [each["metadata"]["name"] for each in cluster.items("nodes") if "unschedulable" in each["spec"]] == []


def test_at_a_cold_start_the_share_manager_follows_the_vm_and_a_restart_places_both_together_again(
    namespace: Namespace, record_property: Seen
) -> None:
    before, server = namespace.start_together()
    assert decision(before).startswith("ColdStart"), decision(before)
    assert decision(server).startswith("CoScheduled"), decision(server)
    namespace.wait_state("Together")
    namespace.restart_vm()
    after = namespace.wait_running(other_than=before)
    record_property("seen", f"both on {node_of(before)} → {namespace.wait_together()}, {decision(after)}")


def test_a_vm_is_pinned_to_its_running_share_manager_although_it_prefers_other_nodes(
    namespace: Namespace, record_property: Seen
) -> None:
    record_property("seen", decision(namespace.start_pinned()))


def test_recolocate_brings_a_migrated_vm_back_to_its_disk(
    cluster: Cluster, namespace: Namespace, record_property: Seen
) -> None:
    vm, server = namespace.start_together()
    vmi = namespace.vmi()
    cluster.wait("KubeVirt finds the VM live-migratable", lambda: is_migratable(namespace.vmi()))
    namespace.migrate_vm()
    away = namespace.wait_running(other_than=vm)
    assert node_of(away) != node_of(vm)
    assert uid(namespace.share_manager()) == uid(server)
    namespace.wait_state("Apart")
    printed = namespace.recolocate()
    assert namespace.wait_together() == node_of(server)
    namespace.wait_state("Together")
    assert uid(namespace.vmi()) == uid(vmi)  # it was never restarted
    record_property("seen", f"{node_of(vm)} → {node_of(away)} → {node_of(server)}: {printed}")


def test_a_deleted_share_manager_does_to_the_vm_what_doctor_says(
    cluster: Cluster, namespace: Namespace, record_property: Seen
) -> None:
    """docs/reference/versions.md has the table. `doctor --pre` reads the version and the settings that it names."""
    vm, server = namespace.start_together()
    says = cluster.read("doctor", "--pre")
    assert "✓ Longhorn v" in says
    namespace.delete_share_manager()
    namespace.wait_share_manager(other_than=server)
    if "which may delete a VM's pod" in says:
        cluster.watch("whether Longhorn deletes its pod", lambda: True)
    else:
        cluster.watch("the VM runs in the same pod", lambda: uid(namespace.launcher()) == uid(vm))
    node = namespace.wait_together()
    outcome = "continued" if uid(namespace.launcher()) == uid(vm) else "was started again"
    record_property("seen", f"the VM {outcome}; {node_of(server)} → {node}")


def test_a_drained_vm_and_its_share_manager_meet_on_another_node(namespace: Namespace, record_property: Seen) -> None:
    vm, server = namespace.start_together()
    vmi, drained = namespace.vmi(), node_of(vm)
    namespace.drain(drained)
    after = node_of(namespace.wait_running(other_than=vm, not_on=drained))
    served = node_of(namespace.wait_share_manager(other_than=server, not_on=drained))
    # The share-manager may be placed before KubeVirt has chosen the node of the VM.
    recolocated = "" if after == served else f", then {namespace.recolocate()}"
    node = namespace.wait_together()
    assert node != drained
    outcome = "migrated" if uid(namespace.vmi()) == uid(vmi) else "was started again"
    record_property("seen", f"the VM {outcome} {drained} → {after}, its share-manager → {served}{recolocated}")


def test_benchmark_compares_two_nodes_and_leaves_nothing(cluster: Cluster, record_property: Seen) -> None:
    command = ("kubevirt-scheduler", "benchmark", f"--storage-class={cluster.storage_class}", "--yes", "-o", "json")
    volumes = {each["metadata"]["name"] for each in cluster.items("pv")}
    found = json.loads(cluster.run(*command, seconds=cluster.patience))
    assert found["nodes"]["beside"] != found["nodes"]["elsewhere"]
    assert found["operations"][0].keys() == {"operation", "beside", "elsewhere", "keeps", "clear"}
    assert found["operations"][0]["beside"].keys() == {"p50", "p99", "perSecond"}
    assert cluster.items("namespaces,pods,pvc", "-A", "-l", BENCHMARK) == []
    assert {each["metadata"]["name"] for each in cluster.items("pv")} <= volumes
    record_property("seen", found["text"])


def test_helm_test_succeeds(cluster: Cluster, record_property: Seen) -> None:
    found = json.loads(cluster.run("helm", "list", "-A", "-o", "json"))
    releases = [each for each in found if each["chart"].startswith("kubevirt-scheduler-")]
    if not releases:
        pytest.skip("Helm has no release of the chart: another program installed it")
    for release in releases:
        cluster.run("helm", "test", release["name"], "-n", release["namespace"])
        record_property("seen", release["chart"])


def test_doctor_finds_no_failure(cluster: Cluster, record_property: Seen) -> None:
    marks = [line[0] for line in cluster.read("doctor").splitlines() if line[0] in "✓‼?✗"]
    assert marks.count("✗") == 0
    record_property("seen", f"{marks.count('✓')} ✓, {marks.count('‼')} ‼")


def is_migratable(vmi: Object) -> bool:
    conditions = vmi["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("LiveMigratable", "True") for each in conditions)
