"""The rendered objects: selected pods, pod security, labels, selectors, names, and notes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane import build
from tests.support.helm_chart import (
    CHART,
    NAME,
    NAMESPACE,
    HelmError,
    Object,
    container,
    env_values,
    find_one,
    helm,
    render,
    template,
)
from webhook.placement.settings import Settings

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane


def webhooks(*arguments: Any) -> dict[str, Any]:
    """The webhooks of the configuration, by the first part of their names."""
    found = find_one(render(*arguments), "MutatingWebhookConfiguration")["webhooks"]
    return {each["name"].partition(".")[0]: each for each in found}


# --- webhook configuration ---


def test_the_configuration_covers_vms_and_share_managers_and_fails_open() -> None:
    rendered = webhooks()
    assert list(rendered) == ["vms", "share-managers"]
    for webhook in rendered.values():
        assert webhook["clientConfig"] == {
            "service": {"namespace": NAMESPACE, "name": NAME, "port": 443, "path": "/mutate"}
        }
        assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == (
            "Ignore",
            3,
            "NoneOnDryRun",
        )
    (excluded,) = rendered["vms"]["namespaceSelector"]["matchExpressions"]
    assert (excluded["operator"], excluded["values"]) == ("NotIn", ["kube-system", NAMESPACE])
    assert rendered["share-managers"]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "longhorn-system"
    }


def test_an_observer_always_fails_open() -> None:
    fail = {"webhook": {"failurePolicy": "Fail"}}
    assert webhooks(fail)["vms"]["failurePolicy"] == "Fail"
    assert webhooks(fail | {"settings": {"action": "observe"}})["vms"]["failurePolicy"] == "Ignore"


@pytest.mark.parametrize(
    ("settings", "conditions"),
    [
        ({"migrationTargets": "prefer"}, ["from-kubevirt", "opted-in"]),
        ({"action": "observe", "optIn": "namespace"}, ["from-kubevirt", "no-migration-target"]),
        ({"action": "observe", "migrationTargets": "prefer"}, ["from-kubevirt"]),
    ],
    ids=str,
)
def test_the_match_conditions_follow_the_settings_that_test_called_does_not_try(
    settings: Object, conditions: list[str]
) -> None:
    assert [each["name"] for each in webhooks({"settings": settings})["vms"].get("matchConditions", [])] == conditions


@pytest.mark.parametrize("arguments", [(), ("--api-versions=kubevirt.io/v1/KubeVirt",)], ids=["unknown", "no object"])
def test_without_a_kubevirt_object_the_usual_accounts_are_called_for_and_decided(arguments: tuple[str, ...]) -> None:
    objects = render({}, *arguments)
    accounts = env_values(container(find_one(objects, "Deployment")))["CO_SCHEDULE_KUBEVIRT_ACCOUNTS"].split(",")
    assert tuple(accounts) == Settings().kubevirt_accounts
    vms, _ = find_one(objects, "MutatingWebhookConfiguration")["webhooks"]
    assert str(accounts) in vms["matchConditions"][0]["expression"]


def test_the_namespace_selector_is_added_to_the_excluded_namespaces() -> None:
    chosen = {"matchLabels": {"vms": "true"}, "matchExpressions": [{"key": "stage", "operator": "Exists"}]}
    vms = webhooks({"webhook": {"namespaceSelector": chosen, "excludedNamespaces": ["backup", "kube-system"]}})["vms"]
    first, *rest = vms["namespaceSelector"]["matchExpressions"]
    assert first["values"] == ["kube-system", NAMESPACE, "backup"]
    assert {"matchLabels": vms["namespaceSelector"]["matchLabels"], "matchExpressions": rest} == chosen


# --- pods ---


def test_values_unrelated_to_replicas_and_a_new_chart_version_do_not_restart_them() -> None:
    unrelated = {
        "dashboard": {"enabled": True},
        "webhook": {"timeoutSeconds": 5},
        "service": {"sessionAffinity": {"enabled": False}},
        "commonAnnotations": {"team": "storage"},
        "test": {"namespace": "shop"},
    }
    before, after = (find_one(render(values), "Deployment")["spec"]["template"] for values in ({}, unrelated))
    assert after == before
    assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(before["metadata"]["labels"])


def test_selectors_match_only_the_replicas_and_port_names_match_the_container() -> None:
    values = {"commonLabels": {"team": "storage"}, "affinity": {"nodeAffinity": {}}}
    objects = render(values | {"serviceMonitor": {"enabled": True}})
    pod, service = find_one(objects, "Deployment")["spec"]["template"], find_one(objects, "Service")
    (terms,) = pod["spec"]["affinity"]["podAntiAffinity"].values()
    selectors = [each["podAffinityTerm"]["labelSelector"]["matchLabels"] for each in terms]
    selectors += [find_one(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]]
    selectors += [service["spec"]["selector"]]
    assert all(each.items() <= pod["metadata"]["labels"].items() for each in selectors)
    test_labels = find_one(objects, "Pod")["metadata"]["labels"]
    assert not any(each.items() <= test_labels.items() for each in selectors)
    monitor = find_one(objects, "ServiceMonitor")["spec"]
    assert monitor["namespaceSelector"] == {"matchNames": [NAMESPACE]}
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    target_ports = {each["name"]: each["targetPort"] for each in service["spec"]["ports"]}
    (scraped,) = (target_ports[each["port"]] for each in monitor["endpoints"])
    (replica,) = pod["spec"]["containers"]
    assert {each["name"] for each in replica["ports"]} == {*target_ports.values()}
    assert {replica[f"{each}Probe"]["httpGet"]["port"] for each in ("startup", "liveness", "readiness")} == {scraped}


def test_the_network_policy_admits_api_servers_to_both_ports_and_kubelets_and_prometheus_to_http() -> None:
    values = {"enabled": True, "apiServers": ["192.0.2.0/28"], "kubelets": ["198.51.100.0/24"]}
    objects = render({"networkPolicy": values})
    policy = find_one(objects, "NetworkPolicy")["spec"]
    labels = find_one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    both, http = policy["ingress"]
    assert both == {"from": [{"ipBlock": {"cidr": "192.0.2.0/28"}}], "ports": [{"port": "https"}, {"port": "http"}]}
    kubelets, prometheus = http["from"]
    assert (kubelets, http["ports"]) == ({"ipBlock": {"cidr": "198.51.100.0/24"}}, [{"port": "http"}])
    assert set(prometheus) == {"namespaceSelector", "podSelector"}  # one peer: both selectors must match
    assert len(find_one(render({"networkPolicy": values | {"kubelets": [], "prometheus": None}}), "NetworkPolicy")
               ["spec"]["ingress"]) == 1  # fmt: skip


def test_the_egress_rules_admit_the_api_servers_and_dns_only() -> None:
    values = {"enabled": True, "apiServers": ["192.0.2.0/28"], "egress": {"enabled": True}}
    api_servers, dns = find_one(render({"networkPolicy": values}), "NetworkPolicy")["spec"]["egress"]
    cidr = [{"ipBlock": {"cidr": "192.0.2.0/28"}}]
    assert api_servers == {"to": cidr, "ports": [{"port": 443}, {"port": 6443}]}
    (peer,) = dns["to"]
    assert set(peer) == {"namespaceSelector", "podSelector"}  # one peer: both selectors must match
    assert [port["port"] for port in dns["ports"]] == [53, 53]
    without_dns = values | {"egress": {"enabled": True, "dns": None}}
    (only,) = find_one(render({"networkPolicy": without_dns}), "NetworkPolicy")["spec"]["egress"]
    assert only["to"] == cidr
    assert "egress" not in find_one(render({"networkPolicy": values | {"egress": {}}}), "NetworkPolicy")["spec"]


# --- both kinds of pods ---


def pods(values: Object) -> list[Object]:
    """The specs of both kinds of pods: the replicas, `helm test`."""
    objects = render(values)
    return [find_one(objects, "Deployment")["spec"]["template"]["spec"], find_one(objects, "Pod")["spec"]]


def images(values: Object) -> dict[str, str]:
    """The image of each container, by the container's name."""
    return {one["name"]: one["image"] for pod in pods(values) for one in pod["containers"]}


def test_a_global_registry_applies_to_every_image() -> None:
    default, own, mirror = (
        images(values)
        for values in (
            {},
            {"image": {"registry": "registry.example.com", "repository": "a/b", "tag": "1"}},
            {"global": {"imageRegistry": "mirror.example.com:5000/k8s"}, "image": {"registry": "registry.example.com"}},
        )
    )
    version = images({})["webhook"].rpartition(":")[2]
    assert default["webhook"] == f"kubevirt-scheduler:{version}"
    assert own["webhook"] == own["check"] == "registry.example.com/a/b:1"
    assert mirror == dict.fromkeys(("webhook", "check"), f"mirror.example.com:5000/k8s/kubevirt-scheduler:{version}")


def test_pull_secrets_of_a_parent_chart_are_added_to_every_pod_once() -> None:
    values: Object = {
        "imagePullSecrets": [{"name": "own"}],
        "global": {"imagePullSecrets": ["parent", {"name": "own"}]},
    }
    assert [pod["imagePullSecrets"] for pod in pods(values)] == [[{"name": "own"}, {"name": "parent"}]] * 2


# --- labels, annotations, and objects of the user ---


def test_common_annotations_reach_every_object_and_no_pod_template() -> None:
    enabled = {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboard")}
    enabled["rbac"] = {name: {"create": True} for name in ("report", "recolocate")}
    objects = render(enabled | {"commonAnnotations": {"team": "storage", "helm.sh/hook": "none"}})
    assert all(each["metadata"]["annotations"]["team"] == "storage" for each in objects)
    for each in (each for each in objects if each["kind"] == "Deployment"):
        assert "team" not in each["spec"]["template"]["metadata"].get("annotations", {})
    # The annotations that Helm reads take precedence.
    assert find_one(objects, "Pod")["metadata"]["annotations"]["helm.sh/hook"] == "test"


def test_the_helm_test_pod_gets_the_placement_security_and_proxy_values_of_the_replicas() -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy.example.com"}
    terms = [{"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    placement = {
        "nodeSelector": {"pool": "infra"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": required, "podAntiAffinity": {}},  # replaces that of the replicas
        "imagePullSecrets": [{"name": "mine"}],
    }
    contexts: Object = {"podSecurityContext": {"fsGroup": 7}, "securityContext": {"runAsUser": 8}}
    for pod in pods({"extraEnv": [proxy]} | placement | contexts):
        assert {key: pod[key] for key in placement} == placement
        assert (pod["securityContext"]["fsGroup"], pod["securityContext"]["runAsNonRoot"]) == (7, True)
        assert pod["containers"][0]["securityContext"]["runAsUser"] == 8
        assert proxy in pod["containers"][0]["env"]


def test_a_label_that_is_set_twice_renders_once(tmp_path: Path) -> None:
    """Flux passes Helm's output through kustomize, which rejects duplicate keys. An object's own label wins."""
    labeled = {name: {"enabled": True, "labels": {"release": "monitoring"}}
            for name in ("serviceMonitor", "prometheusRule", "dashboard")}  # fmt: skip
    values = labeled | {"commonLabels": {"release": "storage", "app.kubernetes.io/version": "mine"}}
    tmp_path.joinpath("release.yaml").write_text(template(values))
    tmp_path.joinpath("kustomization.yaml").write_text("resources: [release.yaml]")
    command = [build.binaries()["kubectl"], "kustomize", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stderr == ""
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
    assert find_one(objects, "Deployment")["metadata"]["name"] == name
    assert find_one(objects, "Service")["metadata"]["name"] == name


@pytest.mark.parametrize("release", ["near.storage", "2nd", "a" * 37 + "---b"])
def test_a_release_name_that_no_service_may_have_requires_fullname_override(release: str) -> None:
    with pytest.raises(HelmError, match=rf"named {release[:39]}.* no dot\. Set fullnameOverride"):
        render(release=release)
    assert render({"fullnameOverride": "near"}, release=release)


def test_the_notes_describe_the_next_steps() -> None:
    names = "settings.schedulerNames.old=new,settings.schedulerNames.gone=null"
    for action, opt_in, namespace in ("inject", "annotation", "default"), ("observe", "namespace", NAMESPACE):
        notes = helm(
            *("install", NAME, CHART, "--dry-run=client", f"--namespace={namespace}"),
            f"--set=settings.action={action},settings.optIn={opt_in},{names}",
        ).partition("\nNOTES:\n")[2]
        assert ("helm test" in notes) == (namespace != "default")
        assert ("The webhook ignores VMs in its own namespace" in notes) == (namespace == "default")
        assert ("logs deployment" in notes) == (action == "observe")
        assert ("kubectl label namespace" in notes) == (opt_in == "namespace")
        assert "kubectl patch vm VM" in notes
        assert notes.rstrip().endswith("kubevirt-scheduler doctor\n  kubevirt-scheduler report -A")
        assert "The TLS port answers any client" in notes
        assert "that name scheduler old stay Pending until new runs" in notes
        assert "that name scheduler gone" not in notes
