"""Values that can not be meant are refused before anything is installed, and the refusal says what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.helm_chart import CHART, CI, NAMESPACE, HelmError, defaults, helm, leaves, render, value_at

pytestmark = pytest.mark.controlplane  # Helm is built with it

LOAD_AWARE = {"enabled": True, "image": {"tag": "v0.34.7"}}
PROMETHEUS = {"enabled": True, "metricProvider": "Prometheus"}
# What is set, and what the refusal says: where, what is wrong, what is allowed.
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a mode that does not exist": (
        {"settings": {"affinityMode": "mandatory"}},
        ["/settings/affinityMode", "'required', 'preferred'"],
    ),
    "a misspelt key": ({"settings": {"afinityMode": "required"}}, ["/settings", "'afinityMode' not allowed"]),
    "a key at the wrong place": ({"affinityMode": "required"}, ["additional properties 'affinityMode' not allowed"]),
    "a switch that is a text": (
        {"settings": {"nodeGuard": "off"}},
        ["/settings/nodeGuard", "got string, want boolean"],
    ),
    "an action that does not exist": ({"settings": {"action": "dry-run"}}, ["/settings/action", "'inject', 'observe'"]),
    "no annotation at all": ({"settings": {"optInAnnotations": []}}, ["/settings/optInAnnotations", "minItems: got 0"]),
    "a quote in an annotation": (
        {"settings": {"optInAnnotations": ["a'b"]}},
        ["/settings/optInAnnotations/0", "a\\'b"],
    ),
    "an annotation with its value": (
        {"settings": {"optInAnnotations": ["a/b: true"]}},
        ["optInAnnotations/0", "a/b: true"],
    ),
    "two namespaces": ({"settings": {"longhornNamespace": "a,b"}}, ["/settings/longhornNamespace", "'a,b'"]),
    "a scheduler's name in capitals": (
        {"settings": {"schedulerNames": {"a": "Mine"}}},
        ["/settings/schedulerNames/a", "'Mine'"],
    ),
    "a chain of schedulers": (
        {"settings": {"schedulerNames": {"a": "b", "b": "c"}}},
        ["settings.schedulerNames", '"a" leads to "b", which is mapped itself', 'Map "a" to where it ends: "c"'],
    ),
    "a policy in lower case": (
        {"webhook": {"failurePolicy": "ignore"}},
        ["/webhook/failurePolicy", "'Ignore', 'Fail'"],
    ),
    "a timeout that the API forbids": (
        {"webhook": {"timeoutSeconds": 60}},
        ["/webhook/timeoutSeconds", "got 60, want 30"],
    ),
    "no replica": ({"replicas": 0}, ["/replicas", "got 0, want 1"]),
    "replicas in words": ({"replicas": "two"}, ["/replicas", "got string, want integer"]),
    "an image in one piece": ({"image": "kubevirt-scheduler:1"}, ["/image", "got string, want object"]),
    "a digest without its kind": ({"image": {"digest": "0123"}}, ["/image/digest", "sha256:"]),
    "a source that does not exist": (
        {"certificates": {"source": "vault"}},
        ["/certificates/source", "'cert-manager', 'provided'"],
    ),
    "no Secret is named": (
        {"certificates": {"source": "provided"}},
        ["certificates.secretName", "tls.crt, tls.key and ca.crt"],
    ),
    "a Secret that nobody reads": (
        {"certificates": {"secretName": "a"}},
        ["certificates.secretName", "source is self"],
    ),
    "a Secret that Helm deletes on the way": (
        {"certificates": {"source": "provided", "secretName": "kubevirt-scheduler-tls"}},
        ["certificates.secretName", "Copy what is to be kept"],
    ),
    "a configuration that Helm deletes on the way": (
        {"scheduler": {"enabled": True, "configSecret": "kubevirt-scheduler-kube-scheduler"}},
        ["scheduler.configSecret", "Copy what is to be kept"],
    ),
    "an issuer that nobody asks": (
        {"certificates": {"issuerRef": {"name": "a"}}},
        ["certificates.issuerRef", "source is self"],
    ),
    "a port that needs a capability": (
        {"containerPorts": {"https": 443}},
        ["/containerPorts/https", "got 443, want 1,024"],
    ),
    "a budget that ends no drain": ({"podDisruptionBudget": {"maxUnavailable": 0}}, ["/podDisruptionBudget", "want 1"]),
    "a wait as long as the grace": ({"shutdown": {"preStopSeconds": 30}}, ["shutdown:", "Raise gracePeriodSeconds"]),
    "a setting as a variable": (
        {"extraEnv": [{"name": "CO_SCHEDULE_ACTION"}]},
        ["extraEnv", "Set it under `settings`"],
    ),
    "no account": ({"serviceAccount": {"create": False}}, ["serviceAccount.name", "an account that exists"]),
    "a policy that lets nobody in": (
        {"networkPolicy": {"enabled": True}},
        ["networkPolicy.apiServers", "192.0.2.0/28"],
    ),
    "an address that is no network": (
        {"networkPolicy": {"apiServers": ["10.0.0.1"]}},
        ["/networkPolicy/apiServers/0", "10.0.0.1"],
    ),
    "one port for two things": ({"service": {"port": 8080}}, ["service.port", "such as 443"]),
    "one port for both programs": ({"containerPorts": {"http": 8443}}, ["containerPorts", "both 8443"]),
    "the kubelet's own port": (
        {"hostNetwork": True, "containerPorts": {"https": 10250}},
        ["containerPorts", "hostNetwork", "Choose another, such as 8443"],
    ),
    "a policy for the nodes' addresses": (
        {"hostNetwork": True, "networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/28"]}},
        ["networkPolicy", "Set networkPolicy.enabled=false"],
    ),
    "a network by its name": ({"hostNetwork": "host"}, ["/hostNetwork", "got string, want boolean"]),
    "a platform by its version": ({"openshift": "4.18"}, ["/openshift", "'auto', true, false"]),
    "an address to listen on that is one pod's": ({"bindAddress": "10.0.0.1"}, ["/bindAddress", "'0.0.0.0', '::'"]),
    "an image with its tag": (
        {"image": {"repository": "localhost:5000/a/b:1"}},
        ["image.repository", "Leave it out there, and set image.tag"],
    ),
    "a scheduler's image with its digest": (
        {"scheduler": {"image": {"repository": "a/b@sha256:1"}}},
        ["scheduler.image.repository", "set scheduler.image.tag"],
    ),
    "a label that is selected by": (
        {"commonLabels": {"app.kubernetes.io/component": "storage"}},
        ["commonLabels: app.kubernetes.io/component", "Choose another key"],
    ),
    "an annotation whose prefix is no name": (
        {"settings": {"optInAnnotations": ["a..b/c"]}},
        ["/settings/optInAnnotations/0", "a..b/c"],
    ),
    "a label that is a number": ({"podLabels": {"a": 1}}, ["/podLabels/a", "got number, want string"]),
    "a test where nobody looks": ({"test": {"namespace": "kube-system"}}, ["test.namespace", "such as default"]),
    "the default scheduler's name": (
        {"scheduler": {"enabled": True, "name": "default-scheduler"}},
        ["scheduler.name", "Choose another"],
    ),
    "plugins without their scheduler": ({"scheduler": {"loadAware": {"enabled": True}}}, ["scheduler.enabled=true"]),
    "plugins without their image": (
        {"scheduler": {"enabled": True, "loadAware": {"enabled": True}}},
        ["scheduler.image.tag", "kubernetes-sigs/scheduler-plugins"],
    ),
    "two plugins": (
        {"scheduler": {"loadAware": {"plugin": "A,B"}}},
        ["/scheduler/loadAware/plugin", "'TargetLoadPacking'"],
    ),
    "Prometheus without an address": (
        {"scheduler": LOAD_AWARE | {"loadAware": PROMETHEUS}},
        ["prometheus.address", "https://"],
    ),
    "an address that nobody asks": (
        {"scheduler": LOAD_AWARE | {"loadAware": {"enabled": True, "prometheus": {"address": "https://a"}}}},
        ["scheduler.loadAware.prometheus", "metricProvider is KubernetesMetricsServer"],
    ),
    "a token in clear text": (
        {
            "scheduler": LOAD_AWARE
            | {"loadAware": PROMETHEUS | {"prometheus": {"address": "http://a", "token": "t0k3n"}}}
        },
        ["scheduler.loadAware.prometheus", "Use https://"],
    ),
    "a token that goes nowhere": (
        {
            "scheduler": LOAD_AWARE
            | {
                "configSecret": "c",
                "loadAware": PROMETHEUS | {"prometheus": {"address": "https://a", "token": "t0k3n"}},
            }
        },
        ["scheduler.configSecret", "config.yaml"],
    ),
    "a weight above one": (
        {"scheduler": {"loadAware": {"riskLimitWeights": {"cpu": 2}}}},
        ["riskLimitWeights/cpu", "want 1"],
    ),
}


@pytest.mark.parametrize(("values", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_refused_and_the_refusal_helps(values: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(HelmError) as refused:
        render(values)
    for part in said:
        assert part in str(refused.value)
    assert "t0k3n" not in str(refused.value)


# In a file, what stood below a key may all be commented out: then to Helm there is no such key.
SWITCHED_ON = {name: {"enabled": True} for name in ("scheduler", "serviceMonitor", "prometheusRule", "dashboard")}
SWITCHED_ON |= {"certificates": {"source": "cert-manager"}}
SECTIONS = [key for key, value in defaults().items() if isinstance(value, dict) and value]
EMPTY = [path for path in leaves(defaults()) if value_at(path) in ({}, [])]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_with_nothing_in_it_is_named(section: str) -> None:
    with pytest.raises(HelmError, match=f"missing property '{section}'"):
        render({section: None})


@pytest.mark.parametrize("path", EMPTY, ids=".".join)
def test_a_list_or_a_map_with_nothing_in_it_is_empty(path: tuple[str, ...]) -> None:
    section, *keys = path
    value: Any = None
    for key in reversed(keys):
        value = {key: value}
    assert render(SWITCHED_ON | {section: SWITCHED_ON.get(section, {}) | value if keys else value})


def test_an_older_cluster_is_refused() -> None:
    with pytest.raises(
        HelmError, match=r"chart requires kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes v1.29"
    ):
        render({}, "--kube-version=1.29.14")


@pytest.mark.parametrize("version", ["v1.30.0", "v1.33.1-eks-1", "v1.34.2+k3s1"])
def test_a_distribution_s_version_is_taken_and_the_scheduler_s_image_is_upstream_s(version: str) -> None:
    objects = render({"scheduler": {"enabled": True}}, f"--kube-version={version}")
    images = [
        each["spec"]["template"]["spec"]["containers"][0]["image"] for each in objects if each["kind"] == "Deployment"
    ]
    plain = version.partition("-")[0].partition("+")[0]
    assert f"registry.k8s.io/kube-scheduler:{plain}" in images


def test_a_version_that_tells_no_image_is_refused_unless_the_image_is_named() -> None:
    with pytest.raises(HelmError, match=r"scheduler.image.tag: .* v1.33, .* such as v1.36.3"):
        render({"scheduler": {"enabled": True}}, "--kube-version=1.33")
    assert render({"scheduler": {"enabled": True, "image": {"tag": "v1.33.4"}}}, "--kube-version=1.33")


def test_another_chart_may_have_this_one_in_it() -> None:
    render({"global": {"anything": 1}, "enabled": True})


@pytest.mark.parametrize("file", CI, ids=lambda file: file.stem)
def test_helm_finds_nothing_to_complain_of(file: Any) -> None:
    said = helm("lint", "--strict", CHART, f"--namespace={NAMESPACE}", f"--values={file}")
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said
