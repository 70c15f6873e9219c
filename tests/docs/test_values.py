"""What the comments of the chart's values.yaml say of rights and defaults is what Helm renders."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.helm_chart import CHART, NAME, NAMESPACE, Object, find_one, render

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

MENTIONS = re.compile(r"\b[Rr]ights?\b|grant|[Dd]efault(?!-)|ClusterRole")
CERT_MANAGER: Object = {"certificates": {"source": "cert-manager"}}
POLICY: Object = {"enabled": True, "apiServers": ["192.0.2.0/28"]}


def sentences() -> set[str]:
    """Return the sentences of the comments that mention rights or defaults."""
    text = (CHART / "values.yaml").read_text()
    blocks = re.findall(r"(?:^ *# ?(?!-).*\n)+", text, re.MULTILINE)
    joined = (" ".join(line.strip(" #") for line in block.splitlines()) for block in blocks)
    return {part for block in joined for part in re.split(r"(?<=[.)]) (?=[A-Z`])", block) if MENTIONS.search(part)}


def names(values: Object, kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in render(values) if one["kind"] == kind}


def rights(values: Object) -> set[tuple[str, str]]:
    """Return the verbs and resources of the webhook's ClusterRole."""
    rules = find_one(render(values), "ClusterRole", NAME)["rules"]
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


def pod(values: Object) -> Object:
    spec: Object = find_one(render(values), "Deployment")["spec"]["template"]["spec"]
    return spec


def accounts() -> str:
    (container,) = pod({})["containers"]
    return str(next(one["value"] for one in container["env"] if one["name"] == "CO_SCHEDULE_KUBEVIRT_ACCOUNTS"))


def default_accounts() -> bool:
    places = "kubevirt", "openshift-cnv", "harvester-system", "kubevirt-hyperconverged"
    return accounts().split(",") == [f"system:serviceaccount:{place}:kubevirt-controller" for place in places]


def prefers_other_nodes_and_zones() -> bool:
    terms = pod({})["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    keys = {term["podAffinityTerm"]["topologyKey"] for term in terms}
    return keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def egress_defaults_to_the_ingress() -> bool:
    found = find_one(render({"networkPolicy": POLICY | {"egress": {"enabled": True}}}), "NetworkPolicy")
    return "192.0.2.0/28" in str(found["spec"]["egress"])


def is_in_the_releases_namespace(kind: str, values: Object) -> bool:
    return bool(find_one(render(values), kind)["metadata"]["namespace"] == NAMESPACE)


def nightly() -> bool:
    kinds = {one["kind"] for one in render({"recolocate": {"schedule": "0 2 * * *"}}) if "recolocate" in str(one)}
    return {"CronJob", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"} <= kinds


# A sentence, by its first words, and whether it is true; None if it describes another program.
TABLE: dict[str, Callable[[], bool] | None] = {
    "By default, `helm install` looks up": lambda: "lookup" in (CHART / "templates/_webhooks.tpl").read_text(),
    "Without the cluster (`helm template`, GitOps), the default is": default_accounts,
    "With `false`, such a VM stays Pending": lambda: (
        ("delete", "pods") in rights({}) - rights({"release": {"enabled": False}})
    ),
    "The issuer for `cert-manager`, by default a CA": lambda: len(names(CERT_MANAGER, "Issuer")) == 2,
    "If it is empty, the repository may include it": None,
    "By default the appVersion": lambda: pod({})["containers"][0]["image"].endswith(":0.1.0"),
    "By default, each replica prefers a node and a zone": prefers_other_nodes_and_zones,
    "By default, all but one": lambda: find_one(render(), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1,
    "By default that of the other objects": lambda: names({}, "ServiceAccount") - {f"{NAME}-test"} == {NAME},
    "With `false`, the webhook doesn't work until": lambda: not names({"rbac": {"create": False}}, "ClusterRole"),
    "Create the ClusterRole for users of `report`": lambda: (
        f"{NAME}-report" in names({"rbac": {"report": {"create": True}}}, "ClusterRole")
    ),
    "Create the ClusterRole for users of `recolocate`": lambda: (
        f"{NAME}-recolocate" in names({"rbac": {"recolocate": {"create": True}}}, "ClusterRole")
    ),
    "They protect the webhook's annotations": lambda: len(names({}, "ValidatingAdmissionPolicy")) == 5,
    "By default, the cluster chooses": lambda: "ipFamilyPolicy" not in find_one(render(), "Service")["spec"],
    "On GKE's private clusters": None,
    "The default is `false` because the chart can't know": lambda: not names({}, "NetworkPolicy"),
    "If you set labels here before": None,
    "The default is `networkPolicy.apiServers`": egress_defaults_to_the_ingress,
    "The default is the release's namespace": lambda: (
        is_in_the_releases_namespace("ServiceMonitor", {"serviceMonitor": {"enabled": True}})
        and is_in_the_releases_namespace("PrometheusRule", {"prometheusRule": {"enabled": True}})
    ),
    "The default is `kubevirt-scheduler` if the release has": lambda: NAME in names({}, "Deployment"),
    "It creates the CronJob, its account": nightly,
    "By default the control plane's": lambda: (
        "timeZone" not in find_one(render({"recolocate": {"schedule": "0 2 * * *"}}), "CronJob")["spec"]
    ),
}


def test_each_sentence_on_a_right_or_a_default_is_in_the_table() -> None:
    assert {one for one in sentences() if not any(map(one.startswith, TABLE))} == set()
    assert {start for start in TABLE if not any(one.startswith(start) for one in sentences())} == set()


@pytest.mark.parametrize("start", [start for start, is_true in TABLE.items() if is_true])
def test_a_sentence_on_a_right_or_a_default_is_true(start: str) -> None:
    is_true = TABLE[start]
    assert is_true
    assert is_true()
