"""Helm refuses invalid values before it installs anything, and the message states what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.helm_chart import (
    CHART,
    CI_VALUES,
    NAMESPACE,
    HelmError,
    default_value,
    default_values,
    helm,
    leaf_paths,
    render,
)

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

LOAD_AWARE = {"enabled": True, "image": {"tag": "v0.34.7"}}
PROMETHEUS = {"enabled": True, "metricProvider": "Prometheus"}
# Values, and parts of the error message: the location, the problem, the allowed values.
INVALID: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown affinity mode": (
        {"settings": {"affinityMode": "mandatory"}},
        ["/settings/affinityMode", "'required', 'preferred'"],
    ),
    "client CA from two sources": (
        {"tls": {"clientCA": {"configMap": "a", "secret": "b"}}},
        ["tls.clientCA: configMap and secret are both set", "Empty the other"],
    ),
    "client CA without its source": ({"tls": {"clientCA": "a"}}, ["/tls/clientCA", "got string, want object"]),
    "misspelled key": ({"settings": {"afinityMode": "required"}}, ["/settings", "'afinityMode' not allowed"]),
    "key at the wrong level": ({"affinityMode": "required"}, ["additional properties 'affinityMode' not allowed"]),
    "boolean as a string": (
        {"settings": {"nodeGuard": "off"}},
        ["/settings/nodeGuard", "got string, want boolean"],
    ),
    "unknown action": ({"settings": {"action": "dry-run"}}, ["/settings/action", "'inject', 'observe'"]),
    "no opt-in annotation": ({"settings": {"optInAnnotations": []}}, ["/settings/optInAnnotations", "minItems: got 0"]),
    "opt-in annotation with a quote": (
        {"settings": {"optInAnnotations": ["a'b"]}},
        ["/settings/optInAnnotations/0", "a\\'b"],
    ),
    "opt-in annotation with a value": (
        {"settings": {"optInAnnotations": ["a/b: true"]}},
        ["optInAnnotations/0", "a/b: true"],
    ),
    "two Longhorn namespaces": ({"settings": {"longhornNamespace": "a,b"}}, ["/settings/longhornNamespace", "'a,b'"]),
    "scheduler name with a capital letter": (
        {"settings": {"schedulerNames": {"a": "Mine"}}},
        ["/settings/schedulerNames/a", "'Mine'"],
    ),
    "chained scheduler names": (
        {"settings": {"schedulerNames": {"a": "b", "b": "c"}}},
        ["settings.schedulerNames", '"a" maps to "b", which is mapped itself', 'Map "a" to the final name: "c"'],
    ),
    "failure policy in lower case": (
        {"webhook": {"failurePolicy": "ignore"}},
        ["/webhook/failurePolicy", "'Ignore', 'Fail'"],
    ),
    "timeout above the API maximum": (
        {"webhook": {"timeoutSeconds": 60}},
        ["/webhook/timeoutSeconds", "got 60, want 30"],
    ),
    "unknown handling of migration targets": (
        {"settings": {"migrationTargets": "require"}},
        ["/settings/migrationTargets", "'ignore', 'prefer'"],
    ),
    "release after one second": ({"release": {"after": 1}}, ["/release/after", "got 1, want 5"]),
    "release after two hours": ({"release": {"after": 7200}}, ["/release/after", "want 3,600"]),
    "release time as a duration": ({"release": {"after": "30s"}}, ["/release/after", "got string, want integer"]),
    "session affinity as a string": (
        {"service": {"sessionAffinity": "ClientIP"}},
        ["/service/sessionAffinity", "got string, want object"],
    ),
    "session affinity for two days": (
        {"service": {"sessionAffinity": {"timeoutSeconds": 172800}}},
        ["/service/sessionAffinity/timeoutSeconds", "want 86,400"],
    ),
    "admission policy as a string": (
        {"admissionPolicy": {"enabled": "auto"}},
        ["/admissionPolicy/enabled", "got string, want boolean"],
    ),
    "more replicas than the program accepts": ({"replicas": 101}, ["/replicas", "got 101, want 100"]),
    "zero replicas": ({"replicas": 0}, ["/replicas", "got 0, want 1"]),
    "replicas as a string": ({"replicas": "two"}, ["/replicas", "got string, want integer"]),
    "image as a string": ({"image": "kubevirt-scheduler:1"}, ["/image", "got string, want object"]),
    "digest without its algorithm": ({"image": {"digest": "0123"}}, ["/image/digest", "sha256:"]),
    "unknown certificate source": (
        {"certificates": {"source": "vault"}},
        ["/certificates/source", "'cert-manager', 'provided'"],
    ),
    "source provided without a Secret": (
        {"certificates": {"source": "provided"}},
        ["certificates.secretName", "tls.crt, tls.key and ca.crt"],
    ),
    "Secret with source self": (
        {"certificates": {"secretName": "a"}},
        ["certificates.secretName", "source is self"],
    ),
    "certificate Secret that the upgrade deletes": (
        {"certificates": {"source": "provided", "secretName": "kubevirt-scheduler-tls"}},
        ["certificates.secretName", "Copy its content"],
    ),
    "config Secret that the upgrade deletes": (
        {"scheduler": {"enabled": True, "configSecret": "kubevirt-scheduler-kube-scheduler"}},
        ["scheduler.configSecret", "Copy its content"],
    ),
    "issuer with source self": (
        {"certificates": {"issuerRef": {"name": "a"}}},
        ["certificates.issuerRef", "source is self"],
    ),
    "privileged container port": (
        {"containerPorts": {"https": 443}},
        ["/containerPorts/https", "got 443, want 1,024"],
    ),
    "disruption budget that blocks drains": (
        {"podDisruptionBudget": {"maxUnavailable": 0}},
        ["/podDisruptionBudget", "want 1"],
    ),
    "preStop wait as long as the grace period": (
        {"shutdown": {"preStopSeconds": 30}},
        ["shutdown:", "Raise gracePeriodSeconds"],
    ),
    "setting in extraEnv": (
        {"extraEnv": [{"name": "CO_SCHEDULE_ACTION"}]},
        ["extraEnv", "Set it under `settings`"],
    ),
    "no service account": ({"serviceAccount": {"create": False}}, ["serviceAccount.name", "an account that exists"]),
    "network policy without API servers": (
        {"networkPolicy": {"enabled": True}},
        ["networkPolicy.apiServers", "192.0.2.0/28"],
    ),
    "IP address instead of a CIDR": (
        {"networkPolicy": {"apiServers": ["10.0.0.1"]}},
        ["/networkPolicy/apiServers/0", "10.0.0.1"],
    ),
    "Service port used twice": ({"service": {"port": 8080}}, ["service.port", "such as 443"]),
    "same container port for HTTPS and HTTP": ({"containerPorts": {"http": 8443}}, ["containerPorts", "both 8443"]),
    "kubelet port on the host network": (
        {"hostNetwork": True, "containerPorts": {"https": 10250}},
        ["containerPorts", "hostNetwork", "Choose another port, such as 8443"],
    ),
    "network policy on the host network": (
        {"hostNetwork": True, "networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/28"]}},
        ["networkPolicy", "Set networkPolicy.enabled=false"],
    ),
    "egress without a network policy": (
        {"networkPolicy": {"egress": {"enabled": True}}},
        ["networkPolicy.egress", "Set networkPolicy.enabled=true"],
    ),
    "egress to no port": (
        {"networkPolicy": {"egress": {"apiServerPorts": []}}},
        ["/networkPolicy/egress/apiServerPorts", "minItems: got 0"],
    ),
    "scrape timeout above the interval": (
        {"serviceMonitor": {"scrapeTimeout": "1m"}},
        ["serviceMonitor.scrapeTimeout: 1m", "the interval, 30s"],
    ),
    "registry with a scheme": (
        {"image": {"registry": "https://registry.example.com"}},
        ["/image/registry", "https://registry.example.com"],
    ),
    "registry in the repository too": (
        {"global": {"imageRegistry": "mirror.example.com"}, "image": {"repository": "registry.example.com/a/b"}},
        ["image.repository", "Remove it from the repository", "mirror.example.com"],
    ),
    "extra volume with the name of the certificate's": (
        {"extraVolumes": [{"name": "tls", "emptyDir": {}}]},
        ["/extraVolumes/0/name"],
    ),
    "extra object as a number": ({"extraObjects": [1]}, ["/extraObjects/0", "want string or object"]),
    "hostNetwork as a string": ({"hostNetwork": "host"}, ["/hostNetwork", "got string, want boolean"]),
    "openshift as a version": ({"openshift": "4.18"}, ["/openshift", "'auto', true, false"]),
    "bind address of a single pod": ({"bindAddress": "10.0.0.1"}, ["/bindAddress", "'0.0.0.0', '::'"]),
    "image repository with a tag": (
        {"image": {"repository": "localhost:5000/a/b:1"}},
        ["image.repository", "Remove it there, and set image.tag"],
    ),
    "scheduler image repository with a digest": (
        {"scheduler": {"image": {"repository": "a/b@sha256:1"}}},
        ["scheduler.image.repository", "set scheduler.image.tag"],
    ),
    "common label that selectors use": (
        {"commonLabels": {"app.kubernetes.io/component": "storage"}},
        ["commonLabels: the chart sets app.kubernetes.io/component", "Choose another key"],
    ),
    "opt-in annotation with an invalid prefix": (
        {"settings": {"optInAnnotations": ["a..b/c"]}},
        ["/settings/optInAnnotations/0", "a..b/c"],
    ),
    "label as a number": ({"podLabels": {"a": 1}}, ["/podLabels/a", "got number, want string"]),
    "helm test in an excluded namespace": (
        {"test": {"namespace": "kube-system"}},
        ["test.namespace", "such as default"],
    ),
    "name of the default scheduler": (
        {"scheduler": {"enabled": True, "name": "default-scheduler"}},
        ["scheduler.name", "Choose another"],
    ),
    "load-aware plugin without the scheduler": (
        {"scheduler": {"loadAware": {"enabled": True}}},
        ["scheduler.enabled=true"],
    ),
    "load-aware plugin without an image tag": (
        {"scheduler": {"enabled": True, "loadAware": {"enabled": True}}},
        ["scheduler.image.tag", "kubernetes-sigs/scheduler-plugins"],
    ),
    "two load-aware plugins": (
        {"scheduler": {"loadAware": {"plugin": "A,B"}}},
        ["/scheduler/loadAware/plugin", "'TargetLoadPacking'"],
    ),
    "Prometheus without an address": (
        {"scheduler": LOAD_AWARE | {"loadAware": PROMETHEUS}},
        ["prometheus.address", "https://"],
    ),
    "Prometheus address with the metrics server": (
        {"scheduler": LOAD_AWARE | {"loadAware": {"enabled": True, "prometheus": {"address": "https://a"}}}},
        ["scheduler.loadAware.prometheus", "metricProvider is KubernetesMetricsServer"],
    ),
    "Prometheus token over HTTP": (
        {
            "scheduler": LOAD_AWARE
            | {"loadAware": PROMETHEUS | {"prometheus": {"address": "http://a", "token": "t0k3n"}}}
        },
        ["scheduler.loadAware.prometheus", "Use https://"],
    ),
    "Prometheus token with a config Secret": (
        {
            "scheduler": LOAD_AWARE
            | {
                "configSecret": "c",
                "loadAware": PROMETHEUS | {"prometheus": {"address": "https://a", "token": "t0k3n"}},
            }
        },
        ["scheduler.configSecret", "config.yaml"],
    ),
    "risk weight above one": (
        {"scheduler": {"loadAware": {"riskLimitWeights": {"cpu": 2}}}},
        ["riskLimitWeights/cpu", "want 1"],
    ),
}


@pytest.mark.parametrize(("values", "message_parts"), INVALID.values(), ids=INVALID)
def test_an_invalid_value_is_refused_with_a_helpful_message(values: dict[str, Any], message_parts: list[str]) -> None:
    with pytest.raises(HelmError) as error:
        render(values)
    for part in message_parts:
        assert part in str(error.value)
    assert "t0k3n" not in str(error.value)


# If a values file comments out everything below a key, the key is null, and Helm drops it.
ENABLED = {name: {"enabled": True} for name in ("scheduler", "serviceMonitor", "prometheusRule", "dashboard")}
ENABLED |= {"certificates": {"source": "cert-manager"}}
SECTIONS = [key for key, value in default_values().items() if isinstance(value, dict) and value]
EMPTY_DEFAULTS = [path for path in leaf_paths(default_values()) if default_value(path) in ({}, [])]


@pytest.mark.parametrize("section", SECTIONS)
def test_an_empty_section_is_refused_by_name(section: str) -> None:
    with pytest.raises(HelmError, match=f"missing property '{section}'"):
        render({section: None})


@pytest.mark.parametrize("path", EMPTY_DEFAULTS, ids=".".join)
def test_a_null_list_or_map_renders_like_an_empty_one(path: tuple[str, ...]) -> None:
    section, *keys = path
    value: Any = None
    for key in reversed(keys):
        value = {key: value}
    assert render(ENABLED | {section: ENABLED.get(section, {}) | value if keys else value})


def test_an_unsupported_kubernetes_version_is_refused() -> None:
    with pytest.raises(
        HelmError, match=r"chart requires kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes v1.29"
    ):
        render({}, "--kube-version=1.29.14")


@pytest.mark.parametrize("version", ["v1.30.0", "v1.33.1-eks-1", "v1.34.2+k3s1"])
def test_a_distribution_version_selects_the_upstream_scheduler_image(version: str) -> None:
    objects = render({"scheduler": {"enabled": True}}, f"--kube-version={version}")
    images = [
        each["spec"]["template"]["spec"]["containers"][0]["image"] for each in objects if each["kind"] == "Deployment"
    ]
    upstream = version.partition("-")[0].partition("+")[0]
    assert f"registry.k8s.io/kube-scheduler:{upstream}" in images


def test_a_version_without_a_patch_number_requires_a_scheduler_image_tag() -> None:
    with pytest.raises(HelmError, match=r"scheduler.image.tag: .* v1.33, .* such as v1.36.3"):
        render({"scheduler": {"enabled": True}}, "--kube-version=1.33")
    assert render({"scheduler": {"enabled": True, "image": {"tag": "v1.33.4"}}}, "--kube-version=1.33")


def test_a_parent_chart_can_include_this_chart() -> None:
    render({"global": {"anything": 1}, "enabled": True})


@pytest.mark.parametrize(
    ("timeout", "interval"), [("30s", "30s"), ("500ms", "1s"), ("1m", "60s"), ("59m", "1h"), ("", "1ms")]
)
def test_a_scrape_timeout_up_to_the_interval_is_accepted(timeout: str, interval: str) -> None:
    assert render({"serviceMonitor": {"enabled": True, "scrapeTimeout": timeout, "interval": interval}})


@pytest.mark.parametrize("file", CI_VALUES, ids=lambda file: file.stem)
def test_helm_lint_reports_no_warning(file: Any) -> None:
    output = helm("lint", "--strict", CHART, f"--namespace={NAMESPACE}", f"--values={file}")
    assert "1 chart(s) linted, 0 chart(s) failed" in output
    assert "[WARNING]" not in output
    assert "[ERROR]" not in output
