"""Every value of the chart has an effect: another value renders other objects."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.support.helm_chart import Object, default_value, default_values, leaf_paths, template

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

# With these, most values have an effect.
EVERYTHING: Object = {
    "certificates": {"source": "cert-manager", "issuerRef": {"name": "ca"}},
    "networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/28"], "egress": {"enabled": True}},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
    "image": {"registry": "registry.example.com"},
    "extraVolumes": [{"name": "ca", "emptyDir": {}}],
}
CONTEXTS: dict[str, Object] = {
    "certificates.source": {},
    "hostNetwork": {},
    "networkPolicy.enabled": {"networkPolicy": {"apiServers": ["192.0.2.0/28"]}},
    "serviceAccount.create": {"serviceAccount": {"name": "mine"}},
}
TERMS = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "infra", "operator": "Exists"}]}]}
RULE = {"action": "labeldrop", "regex": "container"}

# Another value for each. A missing one is plain: a string, a switch, a number.
OTHERS: dict[str, Any] = {
    "settings.affinityMode": "preferred",
    "settings.action": "observe",
    "settings.optIn": "namespace",
    "settings.optInAnnotations": ["example.com/near-storage"],
    "settings.kubevirtAccounts": ["system:serviceaccount:vms:kubevirt-controller"],
    "settings.schedulerNames": {"old": "new"},
    "settings.migrationTargets": "prefer",
    "settings.logFormat": "text",
    "settings.logLevel": "warning",
    "webhook.failurePolicy": "Fail",
    "webhook.reinvocationPolicy": "Never",
    "webhook.excludedNamespaces": ["backup"],
    "webhook.namespaceSelector": {"matchLabels": {"vms": "true"}},
    "webhook.annotations": {"a": "b"},
    "certificates.source": "cert-manager",
    "certificates.issuerRef.name": "b",
    "certificates.issuerRef.kind": "ClusterIssuer",
    "certificates.issuerRef.group": "example.com",
    "global.imageRegistry": "mirror.example.com",
    "global.imagePullSecrets": ["registry"],
    "image.registry": "registry.example.com:5000",
    "image.digest": f"sha256:{'0' * 64}",
    "image.pullPolicy": "Always",
    "imagePullSecrets": [{"name": "registry"}],
    "resources.requests.cpu": "200m",
    "resources.requests.memory": "256Mi",
    "resources.limits.memory": "1Gi",
    "nodeSelector": {"pool": "infra"},
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
    "podSecurityContext": {"fsGroup": 1},
    "securityContext": {"readOnlyRootFilesystem": False},
    "probes.startup": {"failureThreshold": 90},
    "probes.liveness": {"failureThreshold": 9},
    "probes.readiness": {"failureThreshold": 9},
    "openshift": True,
    "podDisruptionBudget.maxUnavailable": "50%",
    "shutdown.preStopSeconds": 0,
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    "commonLabels": {"team": "storage"},
    "commonAnnotations": {"team": "storage"},
    "deploymentAnnotations": {"reload": "true"},
    "podLabels": {"mesh": "off"},
    "podAnnotations": {"mesh": "off"},
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}],
    "serviceAccount.create": False,
    "serviceAccount.annotations": {"a": "b"},
    "service.annotations": {"a": "b"},
    "bindAddress": "::",
    "networkPolicy.enabled": True,
    "networkPolicy.apiServers": ["198.51.100.0/24"],
    "networkPolicy.kubelets": ["198.51.100.0/24"],
    "networkPolicy.prometheus.namespaceLabels.kubernetes.io/metadata.name": "metrics",
    "networkPolicy.prometheus.podLabels.app.kubernetes.io/name": "agent",
    "networkPolicy.extraIngress": [{"from": [{"podSelector": {}}]}],
    "networkPolicy.egress.enabled": True,
    "networkPolicy.egress.apiServers": ["198.51.100.0/24"],
    "networkPolicy.egress.apiServerPorts": [443],
    "networkPolicy.egress.dns.namespaceLabels.kubernetes.io/metadata.name": "dns",
    "networkPolicy.egress.dns.podLabels.k8s-app": "coredns",
    "networkPolicy.egress.extra": [{"ports": [{"port": 3128}]}],
    "serviceMonitor.namespace": "monitoring",
    "serviceMonitor.labels": {"release": "prometheus"},
    "serviceMonitor.interval": "1m",
    "serviceMonitor.scrapeTimeout": "10s",
    "serviceMonitor.relabelings": [RULE],
    "serviceMonitor.metricRelabelings": [RULE],
    "prometheusRule.labels": {"release": "prometheus"},
    "prometheusRule.runbookUrl": "https://runbooks.example.com",
    "dashboard.labels.grafana_dashboard": "yes",
    "dashboard.annotations": {"folder": "VMs"},
}
PATHS = {".".join(path): path for path in leaf_paths(default_values())}
del PATHS["certificates.secretName"]  # belongs to the source `provided`: see test_rendered


def with_value(values: Object, path: tuple[str, ...], value: Any) -> Object:
    """Return a copy of the values with another value at a path."""
    key, *rest = path
    return values | {key: with_value(values.get(key) or {}, tuple(rest), value) if rest else value}


def other_value(name: str) -> Any:
    default = default_value(PATHS[name])
    plain = "another" if isinstance(default, str) else not default if isinstance(default, bool) else default
    return OTHERS.get(name, plain + 1 if type(plain) is int else plain)


def test_each_alternative_here_is_of_an_existing_value() -> None:
    assert set(OTHERS) | set(CONTEXTS) <= set(PATHS)


@pytest.mark.parametrize("name", PATHS)
def test_another_value_renders_other_objects(name: str) -> None:
    context, path = CONTEXTS.get(name, EVERYTHING), PATHS[name]
    before = with_value(context, path, default_value(path)) if path[-1] == "enabled" else context
    after = template(with_value(context, path, other_value(name)))
    assert after != template(before)
    assert len([*yaml.safe_load_all(after)]) > 5
