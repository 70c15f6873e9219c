"""What the rendered chart passes to the program: settings, command line, certificates, and rights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from tests.support.helm_chart import (
    CI_VALUES,
    NAME,
    NAMESPACE,
    Object,
    alert_rules,
    container,
    env_values,
    find_one,
    render,
    render_secondary,
    template,
)
from tests.support.webhook_process import RIGHTS
from webhook.cli import COMMANDS
from webhook.commands.doctor.command import doctor
from webhook.commands.doctor.installed_webhook import CLUSTER_SCOPED, NAMESPACED
from webhook.commands.serve import serve
from webhook.placement.objects.selectors import label_selector
from webhook.placement.reasons import Mode
from webhook.placement.settings import PREFIX, Action, LogLevel, MigrationTargets, OptIn, Settings, read_settings

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

SOURCES: dict[str, dict[str, Any]] = {
    "self": {},
    "cert-manager": {"source": "cert-manager"},
    "provided": {"source": "provided", "secretName": "webhook-certificate"},
}
RELEASE_OFF: dict[str, Object] = {
    "release off": {"release": {"enabled": False}},
    "observe": {"settings": {"action": "observe"}},
}
EVERY_SETTING = {
    "affinityMode": "preferred",
    "nodeGuard": False,
    "steering": False,
    "action": "observe",
    "optIn": "namespace",
    "optInAnnotations": ["example.com/near-storage"],
    "longhornNamespace": "storage-system",
    "kubevirtAccounts": ["system:serviceaccount:vms:kubevirt-controller"],
    "schedulerNames": {"kubevirt-scheduler": "default-scheduler", "a.b": "c", "taken-out": None},
    "migrationTargets": "prefer",
    "logLevel": "warning",
}


def grants(objects: list[Object], kind: str) -> list[tuple[Any, ...]]:
    """The rules of the replicas' role of this kind: group, resource, verbs, names. Empty without such a role."""
    rules = [rule for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, NAME)
             for rule in each["rules"]]  # fmt: skip
    return [
        (*rule["apiGroups"], *rule["resources"], tuple(rule["verbs"]), tuple(rule.get("resourceNames", ())))
        for rule in rules
    ]


# --- the program ---


def test_the_chart_and_the_program_have_the_same_defaults() -> None:
    found = read_settings(env_values(container(find_one(render(), "Deployment"))))
    assert found == Settings(namespace_selector=found.namespace_selector)  # names the release's namespace


def test_doctor_asks_for_the_right_to_create_each_kind_of_the_chart() -> None:
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for each in render():
        if "helm.sh/hook" not in each["metadata"].get("annotations", {}):
            plural = re.sub("y$", "ie", each["kind"].lower()) + "s"
            group = each["apiVersion"].rpartition("/")[0]
            found["namespace" in each["metadata"]].add(f"{plural}.{group}".rstrip("."))
    assert found == {True: set(NAMESPACED), False: set(CLUSTER_SCOPED)}


def test_each_setting_reaches_the_program() -> None:
    values = {
        "settings": EVERY_SETTING,
        "release": {"enabled": False, "after": 600},
        "webhook": {"excludedNamespaces": ["shop", "9"], "namespaceSelector": {"matchLabels": {"vms": "true"}}},
    }
    objects = render(values)
    variables = env_values(container(find_one(objects, "Deployment")))
    vms, _ = find_one(objects, "MutatingWebhookConfiguration")["webhooks"]
    assert {name for name in variables if name.startswith(PREFIX)} == {
        PREFIX + setting.name.upper() for setting in fields(Settings)
    }
    assert read_settings(variables) == Settings(
        affinity_mode=Mode.PREFERRED,
        node_guard=False,
        steering=False,
        action=Action.OBSERVE,
        opt_in=OptIn.NAMESPACE,
        namespace_selector=label_selector(vms["namespaceSelector"]),
        opt_in_annotations=("example.com/near-storage",),
        longhorn_namespace="storage-system",
        kubevirt_accounts=("system:serviceaccount:vms:kubevirt-controller",),
        scheduler_names={"kubevirt-scheduler": "default-scheduler", "a.b": "c"},
        migration_targets=MigrationTargets.PREFER,
        release=False,
        release_after=600,
        log_level=LogLevel.WARNING,
    )


def test_the_program_accepts_the_command_line_of_helm_test() -> None:
    test_pod = find_one(render({"fullnameOverride": "near", "test": {"namespace": "shop"}}), "Pod")
    command, *options = test_pod["spec"]["containers"][0]["args"]
    assert COMMANDS[command] == doctor.callback.__module__
    parsed = doctor.make_context(command, options).params
    assert (parsed["calls"], parsed["namespace"], parsed["configuration"]) == (60, "shop", "near")


@pytest.mark.parametrize("source", SOURCES)
def test_the_program_accepts_the_options_of_each_certificate_source_which_has_its_own_volume(source: str) -> None:
    objects = render({"certificates": SOURCES[source], "bindAddress": "::"})
    command, *options = container(find_one(objects, "Deployment"))["args"]
    assert command == "serve"
    parsed = serve.make_context("serve", [*options]).params
    assert (parsed["bind"], parsed["https_port"], parsed["http_port"]) == ("::", 8443, 8080)
    published, lease = f"--webhook-configuration={NAME}", f"--lease={NAMESPACE}/{NAME}-release"
    assert (
        options[3:]
        == {
            "self": [f"--tls-secret={NAMESPACE}/{NAME}-tls", f"--tls-name={NAME}.{NAMESPACE}.svc", published, lease],
            "cert-manager": ["--tls-dir=/etc/kubevirt-scheduler/tls", lease],
            "provided": ["--tls-dir=/etc/kubevirt-scheduler/tls", published, lease],
        }[source]
    )
    volumes = find_one(objects, "Deployment")["spec"]["template"]["spec"].get("volumes", [])
    mounted = {"self": [], "cert-manager": [f"{NAME}-cert-manager-tls"], "provided": ["webhook-certificate"]}[source]
    assert [volume["secret"]["secretName"] for volume in volumes] == mounted


# --- certificates ---


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", ["configMap", "secret"])
def test_a_client_ca_is_mounted_and_required_of_clients(source: str, kind: str) -> None:
    objects = render({"certificates": SOURCES[source], "tls": {"clientCA": {kind: "api-server-ca"}}})
    pod = find_one(objects, "Deployment")["spec"]["template"]["spec"]
    (spec,) = pod["containers"]
    file = serve.make_context("serve", spec["args"][1:]).meta["client_ca_file"]
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in spec["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts) == set(volumes) == {"client-ca"} | ({"tls"} if source != "self" else set())
    assert file == mounts["client-ca"] / "ca.crt"
    mounted = volumes["client-ca"][kind]
    assert mounted["name" if kind == "configMap" else "secretName"] == "api-server-ca"
    assert mounted["items"] == [{"key": "ca.crt", "path": "ca.crt"}]  # never the CA's private key


@pytest.mark.parametrize("file", CI_VALUES, ids=lambda file: file.stem)
def test_rendered_objects_contain_no_ca_bundle_and_no_key(file: Any) -> None:
    rendered = template(file)
    assert not re.search(r"caBundle\"?:|-----BEGIN|tls\.(key|crt)\"?:|(?<!string)[dD]ata\"?: *\{?\"?tls", rendered)
    secrets = [each for each in render(file) if each["kind"] == "Secret" and each["metadata"]["name"].endswith("-tls")]
    assert [set(each) for each in secrets] in ([], [{"apiVersion", "kind", "metadata", "type"}])


# --- release ---


@pytest.mark.parametrize("values", RELEASE_OFF.values(), ids=RELEASE_OFF)
def test_without_the_release_stuck_pins_are_still_reported(values: Object) -> None:
    objects = render(values | {"prometheusRule": {"enabled": True}})
    assert set(find_one(objects, "Lease", f"{NAME}-release")) == {"apiVersion", "kind", "metadata"}
    assert f"--lease={NAMESPACE}/{NAME}-release" in container(find_one(objects, "Deployment"))["args"]
    alerts = {rule["alert"]: rule for rule in alert_rules(objects)}
    stuck, softened = alerts["KubevirtSchedulerPendingPins"], alerts["KubevirtSchedulerSoftened"]
    assert f" Lease {NAMESPACE}/{NAME}-release." in stuck["annotations"]["description"]
    assert "`no-leader`: no replica reports such pins" in stuck["annotations"]["description"]
    assert "released" not in softened["expr"] + softened["annotations"]["description"]


# --- rights ---


@pytest.mark.parametrize(
    ("source", "values"), [*((source, {}) for source in SOURCES), *(("self", off) for off in RELEASE_OFF.values())]
)
def test_the_roles_grant_exactly_the_rights_that_the_program_uses(source: str, values: Object) -> None:
    objects = render({"certificates": SOURCES[source]} | values)
    granted = {kind: grants(objects, kind) for kind in ("ClusterRole", "Role")}
    expected = [(*right, ()) for right in RIGHTS]
    if values:
        expected = [("", "pods", ("list", "watch"), ()) if right[1] == "pods" else right for right in expected]
    named = "get", "update"
    if source != "cert-manager":
        expected.append(("admissionregistration.k8s.io", "mutatingwebhookconfigurations", named, (NAME,)))
    secret = [("", "secrets", named, (f"{NAME}-tls",))] if source == "self" else []
    lease = [("coordination.k8s.io", "leases", named, (f"{NAME}-release",))]
    assert granted == {"ClusterRole": expected, "Role": secret + lease}


def test_each_binding_names_an_existing_account_and_role() -> None:
    objects = render({"serviceAccount": {"name": "webhook"}})
    accounts = {
        (each["metadata"]["namespace"], each["metadata"]["name"])
        for each in objects
        if each["kind"] == "ServiceAccount"
    }
    roles = {(each["kind"], each["metadata"]["name"]) for each in objects if each["kind"].endswith("Role")}
    bindings = [each for each in objects if each["kind"].endswith("RoleBinding")]
    assert {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings} == roles
    assert {(one["namespace"], one["name"]) for each in bindings for one in each["subjects"]} == accounts
    pods = [each["spec"]["template"] for each in objects if each["kind"] == "Deployment"] + [find_one(objects, "Pod")]
    assert {(NAMESPACE, pod["spec"]["serviceAccountName"]) for pod in pods} == accounts


# --- admission policies ---


def policies(values: Object) -> list[str]:
    """The names of the policies that have a binding."""
    objects = render(values)
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
    bound = [each["spec"]["policyName"] for each in objects if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert names == bound
    return names


@pytest.mark.parametrize("source", SOURCES)
def test_each_policy_is_rendered_with_the_right_that_it_narrows(source: str) -> None:
    certificates = {"certificates": SOURCES[source]}
    always = {f"{NAME}-{name}" for name in ("annotations", "events", "own-objects")}
    always |= set() if source == "cert-manager" else {f"{NAME}-webhook-configuration"}
    assert set(policies(certificates)) == always | {f"{NAME}-pods"}
    # Somebody else may bind more rights to the account than it needs.
    assert policies(certificates | {"rbac": {"create": False}}) == policies(certificates)
    for release_off in RELEASE_OFF.values():
        assert set(policies(certificates | release_off)) == always


def test_policies_for_the_account_fail_closed_and_the_policy_for_all_others_fails_open() -> None:
    values = {"serviceAccount": {"create": False, "name": "webhook"}}
    found = {
        each["metadata"]["name"].removeprefix(f"{NAME}-"): each["spec"]
        for each in render(values)
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    assert found.pop("annotations")["failurePolicy"] == "Ignore"
    assert found
    for policy in found.values():
        assert policy["failurePolicy"] == "Fail"
        (condition,) = policy["matchConditions"]
        assert condition["expression"].endswith(f"== 'system:serviceaccount:{NAMESPACE}:webhook'")


def test_no_container_can_write_to_its_root_file_system() -> None:
    """PodSecurity, which the API server checks in another test, has no rule for this."""
    for objects in (render(), render_secondary()):
        assert container(find_one(objects, "Deployment"))["securityContext"]["readOnlyRootFilesystem"] is True
