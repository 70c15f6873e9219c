"""Every value of the chart has an effect: another value renders other objects."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml

from tests.support.helm_chart import Object, default_value, default_values, leaf_paths, template

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

CERT_MANAGER = {"certificates": {"source": "cert-manager"}}
ISSUER = {"certificates": {"source": "cert-manager", "issuerRef": {"name": "ca"}}}
POLICY: Object = {"networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/28"], "egress": {"enabled": True}}}
MONITOR = {"serviceMonitor": {"enabled": True}}
RULES = {"prometheusRule": {"enabled": True}}
DASHBOARD = {"dashboard": {"enabled": True}}
SECRETS = [{"name": "registry"}]
TERMS = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "infra", "operator": "Exists"}]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}}
TOLERATIONS = [{"key": "infra", "operator": "Exists"}]
RULE = {"action": "labeldrop", "regex": "container"}


# For each value: another value, and the values with which it has an effect. A missing one is plain: a string, a switch,
# a number.
OTHERS: dict[str, tuple[Any, Object]] = {
    "settings.affinityMode": ("preferred", {}),
    "settings.action": ("observe", {}),
    "settings.optIn": ("namespace", {}),
    "settings.optInAnnotations": (["example.com/near-storage"], {}),
    "settings.kubevirtAccounts": (["system:serviceaccount:vms:kubevirt-controller"], {}),
    "settings.schedulerNames": ({"old": "new"}, {}),
    "settings.migrationTargets": ("prefer", {}),
    "settings.logFormat": ("text", {}),
    "settings.logLevel": ("warning", {}),
    "webhook.failurePolicy": ("Fail", {}),
    "webhook.reinvocationPolicy": ("Never", {}),
    "webhook.excludedNamespaces": (["backup"], {}),
    "webhook.namespaceSelector": ({"matchLabels": {"vms": "true"}}, {}),
    "webhook.annotations": ({"a": "b"}, {}),
    "certificates.source": ("cert-manager", {}),
    "certificates.secretName": ("b", {"certificates": {"source": "provided", "secretName": "a"}}),
    "certificates.issuerRef.name": ("b", CERT_MANAGER),
    "certificates.issuerRef.kind": ("ClusterIssuer", ISSUER),
    "certificates.issuerRef.group": ("example.com", ISSUER),
    "global.imageRegistry": ("mirror.example.com", {"image": {"registry": "registry.example.com"}}),
    "global.imagePullSecrets": (["registry"], {}),
    "image.registry": ("registry.example.com:5000", {}),
    "image.digest": (f"sha256:{'0' * 64}", {}),
    "image.pullPolicy": ("Always", {}),
    "imagePullSecrets": (SECRETS, {}),
    "resources.requests.cpu": ("200m", {}),
    "resources.requests.memory": ("256Mi", {}),
    "resources.limits.memory": ("1Gi", {}),
    "nodeSelector": ({"pool": "infra"}, {}),
    "tolerations": (TOLERATIONS, {}),
    "affinity": (AFFINITY, {}),
    "topologySpreadConstraints": ([{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}], {}),
    "podSecurityContext": ({"fsGroup": 1}, {}),
    "securityContext": ({"readOnlyRootFilesystem": False}, {}),
    "probes.startup": ({"failureThreshold": 90}, {}),
    "probes.liveness": ({"failureThreshold": 9}, {}),
    "probes.readiness": ({"failureThreshold": 9}, {}),
    "openshift": (True, {}),
    "podDisruptionBudget.maxUnavailable": ("50%", {}),
    "shutdown.preStopSeconds": (0, {}),
    "extraEnv": ([{"name": "HTTPS_PROXY", "value": "http://proxy.example.com"}], {}),
    "extraVolumes": ([{"name": "ca", "configMap": {"name": "ca"}}], {}),
    "extraVolumeMounts": ([{"name": "ca", "mountPath": "/ca"}], {"extraVolumes": [{"name": "ca", "emptyDir": {}}]}),
    "commonLabels": ({"team": "storage"}, {}),
    "commonAnnotations": ({"team": "storage"}, {}),
    "deploymentAnnotations": ({"reload": "true"}, {}),
    "podLabels": ({"mesh": "off"}, {}),
    "podAnnotations": ({"mesh": "off"}, {}),
    "extraObjects": ([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}], {}),
    "serviceAccount.create": (False, {"serviceAccount": {"name": "mine"}}),
    "serviceAccount.annotations": ({"a": "b"}, {}),
    "service.annotations": ({"a": "b"}, {}),
    "bindAddress": ("::", {}),
    "networkPolicy.enabled": (True, {"networkPolicy": {"apiServers": ["192.0.2.0/28"]}}),
    "networkPolicy.apiServers": (["198.51.100.0/24"], POLICY),
    "networkPolicy.kubelets": (["198.51.100.0/24"], POLICY),
    "networkPolicy.prometheus.namespaceLabels.kubernetes.io/metadata.name": ("metrics", POLICY),
    "networkPolicy.prometheus.podLabels.app.kubernetes.io/name": ("agent", POLICY),
    "networkPolicy.extraIngress": ([{"from": [{"podSelector": {}}]}], POLICY),
    "networkPolicy.egress.enabled": (True, {"networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/28"]}}),
    "networkPolicy.egress.apiServers": (["198.51.100.0/24"], POLICY),
    "networkPolicy.egress.apiServerPorts": ([443], POLICY),
    "networkPolicy.egress.dns.namespaceLabels.kubernetes.io/metadata.name": ("dns", POLICY),
    "networkPolicy.egress.dns.podLabels.k8s-app": ("coredns", POLICY),
    "networkPolicy.egress.extra": ([{"ports": [{"port": 3128}]}], POLICY),
    "serviceMonitor.namespace": ("monitoring", MONITOR),
    "serviceMonitor.labels": ({"release": "prometheus"}, MONITOR),
    "serviceMonitor.interval": ("1m", MONITOR),
    "serviceMonitor.scrapeTimeout": ("10s", MONITOR),
    "serviceMonitor.relabelings": ([RULE], MONITOR),
    "serviceMonitor.metricRelabelings": ([RULE], MONITOR),
    "prometheusRule.labels": ({"release": "prometheus"}, RULES),
    "prometheusRule.runbookUrl": ("https://runbooks.example.com", RULES),
    "dashboard.labels.grafana_dashboard": ("yes", DASHBOARD),
    "dashboard.annotations": ({"folder": "VMs"}, DASHBOARD),
}
PATHS = {".".join(path): path for path in leaf_paths(default_values())}


def with_value(values: Object, path: tuple[str, ...], value: Any) -> Object:
    """Return a copy of the values with another value at a path."""
    key, *rest = path
    return values | {key: with_value(values.get(key) or {}, tuple(rest), value) if rest else value}


@cache
def rendered(values: str) -> str:
    return template(yaml.safe_load(values))


def other_value(name: str) -> tuple[Any, Object]:
    """Another value, and the values with which it has an effect."""
    default = default_value(PATHS[name])
    plain = "another" if isinstance(default, str) else not default if isinstance(default, bool) else default
    return OTHERS.get(name) or (plain + 1 if type(plain) is int else plain, {})


def test_each_alternative_here_is_of_an_existing_value() -> None:
    assert set(OTHERS) <= set(PATHS)


@pytest.mark.parametrize("name", PATHS)
def test_another_value_renders_other_objects(name: str) -> None:
    other, context = other_value(name)
    path = PATHS[name]
    assert other != default_value(path)
    # Some contexts set the value themselves: then the other value differs from that one.
    changed = with_value(context, path, other)
    before, after = (rendered(yaml.safe_dump(values)) for values in (context, changed))
    assert after != before
    assert len([*yaml.safe_load_all(after)]) > 5
