"""Which pods the API server shows to us, how ours are run, and what everything is called."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane import build
from tests.support.helm_chart import CHART, CI, NAME, NAMESPACE, HelmError, helm, only, render, template

pytestmark = pytest.mark.controlplane  # Helm is built with it


def webhooks(*arguments: Any) -> dict[str, Any]:
    """The webhooks of the configuration, by the first part of their names."""
    found = only(render(*arguments), "MutatingWebhookConfiguration")["webhooks"]
    return {each["name"].partition(".")[0]: each for each in found}


# --- who is called ---


def test_the_api_server_calls_for_vms_and_share_managers_and_fails_open() -> None:
    called = webhooks()
    assert list(called) == ["vms", "share-managers"]
    for webhook in called.values():
        assert webhook["clientConfig"] == {
            "service": {"namespace": NAMESPACE, "name": NAME, "port": 443, "path": "/mutate"}
        }
        assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == (
            "Ignore",
            3,
            "NoneOnDryRun",
        )
    (excluded,) = called["vms"]["namespaceSelector"]["matchExpressions"]
    assert excluded["values"] == ["kube-system", NAMESPACE]
    assert called["share-managers"]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "longhorn-system"
    }


def test_without_steering_no_share_manager_pod_is_ever_sent_to_us() -> None:
    called = webhooks({"settings": {"steering": False}})
    selector = called["share-managers"]["objectSelector"]
    ((key, _),), (none,) = selector["matchLabels"].items(), selector["matchExpressions"]
    assert none == {"key": key, "operator": "DoesNotExist"}


def test_with_a_map_of_scheduler_names_migration_targets_are_sent_as_well() -> None:
    conditions = [[each["name"] for each in webhooks({"settings": {"schedulerNames": names}})["vms"]["matchConditions"]]
                  for names in ({}, {"a": "b"})]  # fmt: skip
    assert conditions == [["opted-in", "no-migration-target"], ["opted-in"]]


def test_a_scheduler_s_name_that_null_has_taken_out_is_as_if_it_had_never_been_there() -> None:
    left, gone, empty = (
        {"settings": {"schedulerNames": names}} for names in ({"a": "b"}, {"a": "b", "b": None}, {"a": None})
    )
    assert render(gone) == render(left)
    assert render(empty) == render()


def test_what_is_chosen_to_select_by_is_added_to_what_is_always_left_out() -> None:
    chosen = {"matchLabels": {"vms": "true"}, "matchExpressions": [{"key": "stage", "operator": "Exists"}]}
    vms = webhooks({"webhook": {"namespaceSelector": chosen, "excludedNamespaces": ["backup", "kube-system"]}})["vms"]
    first, *rest = vms["namespaceSelector"]["matchExpressions"]
    assert first["values"] == ["kube-system", NAMESPACE, "backup"]
    assert {"matchLabels": vms["namespaceSelector"]["matchLabels"], "matchExpressions": rest} == chosen


# --- pods ---


@pytest.mark.parametrize("file", CI, ids=lambda file: file.stem)
def test_no_pod_asks_for_rights_on_its_node(file: Any) -> None:
    objects = render(file)
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    for pod in pods + [each["spec"] for each in objects if each["kind"] == "Pod"]:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in pod["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize(
    "change",
    [
        {"dashboard": {"enabled": True}},
        {"webhook": {"timeoutSeconds": 5}},
        {"replicas": 3},
        {"test": {"namespace": "shop"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_no_matter_of_a_replica_restarts_none(change: dict[str, Any]) -> None:
    before, after = (only(render(values), "Deployment")["spec"]["template"] for values in ({}, change))
    assert after == before


def test_a_new_chart_with_the_same_program_restarts_none() -> None:
    labels = only(render(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(labels)


def test_the_services_find_the_replicas_and_no_other_pod() -> None:
    objects = render({"scheduler": {"enabled": True}, "commonLabels": {"team": "storage"}})
    selected = only(objects, "Service")["spec"]["selector"]
    pods = {each["metadata"]["name"]: each["spec"]["template"] for each in objects if each["kind"] == "Deployment"}
    pods["test"] = only(objects, "Pod")
    assert [name for name, pod in pods.items() if selected.items() <= pod["metadata"]["labels"].items()] == [NAME]


def test_budget_spread_and_monitor_select_the_replicas_and_ports_have_the_names_that_are_asked_for() -> None:
    objects = render({"serviceMonitor": {"enabled": True}})
    pod, service = only(objects, "Deployment")["spec"]["template"], only(objects, "Service")
    selectors = [each["labelSelector"]["matchLabels"] for each in pod["spec"]["topologySpreadConstraints"]]
    selectors += [only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]]
    assert all(each.items() <= pod["metadata"]["labels"].items() for each in selectors)
    monitor = only(objects, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    doors = {each["name"]: each["targetPort"] for each in service["spec"]["ports"]}
    (scraped,) = (doors[each["port"]] for each in monitor["endpoints"])
    (contained,) = pod["spec"]["containers"]
    assert {each["name"] for each in contained["ports"]} == {*doors.values()}
    assert {contained[f"{each}Probe"]["httpGet"]["port"] for each in ("startup", "liveness", "readiness")} == {scraped}


def test_the_network_policy_lets_api_servers_to_the_tls_port_and_who_looks_to_the_other() -> None:
    values = {"enabled": True, "apiServers": ["192.0.2.0/28"], "kubelets": ["198.51.100.0/24"]}
    objects = render({"networkPolicy": values})
    policy = only(objects, "NetworkPolicy")["spec"]
    labels = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    reviews, looks = policy["ingress"]
    assert (reviews["from"], reviews["ports"]) == ([{"ipBlock": {"cidr": "192.0.2.0/28"}}], [{"port": "https"}])
    kubelets, prometheus = looks["from"]
    assert (kubelets, looks["ports"]) == ({"ipBlock": {"cidr": "198.51.100.0/24"}}, [{"port": "http"}])
    assert set(prometheus) == {"namespaceSelector", "podSelector"}  # one peer: both must fit
    assert len(only(render({"networkPolicy": values | {"kubelets": [], "prometheus": None}}), "NetworkPolicy")
               ["spec"]["ingress"]) == 1  # fmt: skip


@pytest.mark.parametrize("secret", ["", "mine"])
def test_a_service_mesh_can_be_told_to_leave_each_of_our_pods_alone(secret: str) -> None:
    scheduler = {"scheduler": {"enabled": True, "configSecret": secret}}
    objects = render(scheduler | {"podLabels": {"mesh": "off"}, "podAnnotations": {"example.com/inject": "false"}})
    templates = [each["spec"]["template"] for each in objects if each["kind"] == "Deployment"]
    assert len(templates) == 2
    for pod in *templates, only(objects, "Pod"):
        assert pod["metadata"]["labels"]["mesh"] == "off"
        assert pod["metadata"]["annotations"]["example.com/inject"] == "false"


def test_what_a_replica_needs_to_run_and_to_reach_the_api_server_helm_s_test_gets_as_well() -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy.example.com"}
    terms = [{"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}]
    where = {
        "nodeSelector": {"pool": "infra"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
        "imagePullSecrets": [{"name": "mine"}],
    }
    objects = render({"extraEnv": [proxy]} | where)
    for pod in only(objects, "Deployment")["spec"]["template"]["spec"], only(objects, "Pod")["spec"]:
        assert {key: pod[key] for key in where} == where
        assert proxy in pod["containers"][0]["env"]


def test_flux_takes_labels_that_are_set_twice(tmp_path: Path) -> None:
    """It passes what Helm renders through kustomize, which takes no key twice. What is set for one object wins."""
    more = {name: {"enabled": True, "labels": {"release": "monitoring"}}
            for name in ("serviceMonitor", "prometheusRule", "dashboard")}  # fmt: skip
    values = more | {"commonLabels": {"release": "storage", "app.kubernetes.io/version": "mine"}}
    tmp_path.joinpath("release.yaml").write_text(template(values))
    tmp_path.joinpath("kustomization.yaml").write_text("resources: [release.yaml]")
    command = [build.binaries()["kubectl"], "kustomize", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    objects = {each["kind"]: each["metadata"]["labels"] for each in render(values)}
    assert [objects[kind]["release"] for kind in ("ServiceMonitor", "Service")] == ["monitoring", "storage"]


# --- names ---


@pytest.mark.parametrize(
    ("release", "override", "name"),
    [
        ("kubevirt-scheduler", {}, "kubevirt-scheduler"),
        ("near", {}, "near-kubevirt-scheduler"),
        ("near", {"nameOverride": "co"}, "near-co"),
        ("near", {"fullnameOverride": "co"}, "co"),
        ("a" * 53, {}, "a" * 40),
    ],
)
def test_names_follow_the_release(release: str, override: dict[str, str], name: str) -> None:
    objects = render(override, release=release)
    assert only(objects, "Deployment")["metadata"]["name"] == name
    assert only(objects, "Service")["metadata"]["name"] == name


def test_a_release_whose_name_no_service_can_have_is_told_of_another_way() -> None:
    with pytest.raises(HelmError, match=r"near\.storage-kubevirt-scheduler, .* no dot\. Set fullnameOverride"):
        render(release="near.storage")
    assert render({"fullnameOverride": "near"}, release="near.storage")


def test_nothing_is_outside_the_release_s_namespace_but_what_has_to_be() -> None:
    objects = render({"scheduler": {"enabled": True}})
    outside = {(each["kind"], each["metadata"]["namespace"]) for each in objects if "namespace" in each["metadata"]}
    assert {pair for pair in outside if pair[1] != NAMESPACE} == {
        ("Role", "default"),  # the test's
        ("RoleBinding", "default"),
        ("RoleBinding", "kube-system"),  # extension-apiserver-authentication-reader
    }


def test_the_notes_say_what_to_do_next() -> None:
    for action, own in product(("inject", "observe"), ("default", NAMESPACE)):
        notes = helm(
            "install", NAME, CHART, "--dry-run=client", f"--namespace={own}", f"--set=settings.action={action}"
        )
        notes = notes.partition("\nNOTES:\n")[2]
        assert ("helm test" in notes.replace("`helm test`", "")) == (action == "inject" and own != "default")
        assert "kubectl patch vm VM" in notes
        assert ("VMs in our own namespace are never looked at" in notes) == (own == "default")


def test_the_notes_name_the_schedulers_that_vms_will_wait_for_and_none_that_null_has_taken_out() -> None:
    names = ["--set=settings.schedulerNames.old=new", "--set=settings.schedulerNames.gone=null"]
    notes = helm("install", NAME, CHART, "--dry-run=client", f"--namespace={NAMESPACE}", *names)
    assert "that name scheduler old will wait for new" in notes
    assert "that name scheduler gone" not in notes
