"""What the chart gives to the program: settings, command line, certificates, rights."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.helm_chart import CHART, CI, NAME, NAMESPACE, container, only, render, template, variables
from tests.support.webhook_process import RIGHTS
from webhook.cli import COMMANDS
from webhook.commands.check import check
from webhook.commands.serve import serve
from webhook.placement.decision import Mode
from webhook.placement.settings import Action, LogFormat, LogLevel, Settings, read_settings

pytestmark = pytest.mark.controlplane  # Helm is built with it

SOURCES: dict[str, dict[str, Any]] = {
    "self": {},
    "cert-manager": {"source": "cert-manager"},
    "provided": {"source": "provided", "secretName": "webhook-certificate"},
}
EVERY_SETTING = {
    "affinityMode": "preferred",
    "nodeGuard": False,
    "steering": False,
    "action": "observe",
    "optInAnnotations": ["example.com/near-storage"],
    "longhornNamespace": "storage-system",
    "schedulerNames": {"kubevirt-scheduler": "default-scheduler", "a.b": "c", "taken-out": None},
    "logFormat": "text",
    "logLevel": "warning",
}


def rights(rules: list[dict[str, Any]]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(rule["apiGroups"][0], rule["resources"][0], tuple(rule["verbs"])) for rule in rules]


# --- the program ---


def test_the_defaults_are_the_program_s() -> None:
    assert read_settings(variables(container(only(render(), "Deployment")))) == Settings()


def test_each_setting_reaches_the_program() -> None:
    deployment = only(render({"settings": EVERY_SETTING}), "Deployment")
    assert read_settings(variables(container(deployment))) == Settings(
        affinity_mode=Mode.PREFERRED,
        node_guard=False,
        steering=False,
        action=Action.OBSERVE,
        opt_in_annotations=("example.com/near-storage",),
        longhorn_namespace="storage-system",
        scheduler_names={"kubevirt-scheduler": "default-scheduler", "a.b": "c"},
        log_format=LogFormat.TEXT,
        log_level=LogLevel.WARNING,
    )


@pytest.mark.parametrize("source", SOURCES)
def test_the_command_line_is_one_that_the_program_takes(source: str) -> None:
    command, *options = container(only(render({"certificates": SOURCES[source]}), "Deployment"))["args"]
    assert command == "serve"
    parsed = serve.make_context("serve", options).params
    assert (parsed["bind"], parsed["https_port"], parsed["http_port"]) == ("0.0.0.0", 8443, 8080)


def test_where_pods_have_ipv6_only_both_programs_listen_there() -> None:
    objects = render({"bindAddress": "::", "scheduler": {"enabled": True}})
    webhook, scheduler = (container(only(objects, "Deployment", name)) for name in (NAME, f"{NAME}-kube-scheduler"))
    assert serve.make_context("serve", webhook["args"][1:]).params["bind"] == "::"
    assert "--bind-address=::" in scheduler["args"]


def test_the_test_s_command_line_is_one_that_the_program_takes() -> None:
    (contained,) = only(render({"fullnameOverride": "near", "test": {"namespace": "shop"}}), "Pod")["spec"][
        "containers"
    ]
    command, *options = contained["args"]
    assert command == "check"
    assert COMMANDS[command] == check.callback.__module__
    parsed = check.make_context("check", options).params
    assert (parsed["namespace"], parsed["configuration"]) == ("shop", "near")


@pytest.mark.parametrize("source", SOURCES)
def test_it_is_told_where_its_certificate_comes_from(source: str) -> None:
    objects = render({"certificates": SOURCES[source]})
    args = container(only(objects, "Deployment"))["args"][4:]
    published = f"--webhook-configuration={NAME}"
    assert (
        args
        == {
            "self": [f"--tls-secret={NAMESPACE}/{NAME}-tls", f"--tls-name={NAME}.{NAMESPACE}.svc", published],
            "cert-manager": ["--tls-dir=/etc/kubevirt-scheduler/tls"],
            "provided": ["--tls-dir=/etc/kubevirt-scheduler/tls", published],
        }[source]
    )
    volumes = only(objects, "Deployment")["spec"]["template"]["spec"].get("volumes", [])
    mounted = {"self": [], "cert-manager": [f"{NAME}-cert-manager-tls"], "provided": ["webhook-certificate"]}[source]
    assert [volume["secret"]["secretName"] for volume in volumes] == mounted


# --- certificates ---


@pytest.mark.parametrize("file", CI, ids=lambda file: file.stem)
def test_no_rendering_holds_a_ca_bundle_or_key_material(file: Any) -> None:
    rendered = template(file)
    assert not re.search(r"caBundle\"?:|-----BEGIN|tls\.(key|crt)\"?:|(?<!string)[dD]ata\"?: *\{?\"?tls", rendered)
    secrets = [each for each in render(file) if each["kind"] == "Secret" and each["metadata"]["name"].endswith("-tls")]
    assert [set(each) for each in secrets] in ([], [{"apiVersion", "kind", "metadata", "type"}])


def test_cert_manager_s_injector_is_pointed_at_the_certificate() -> None:
    objects = render({"certificates": SOURCES["cert-manager"]})
    annotations = only(objects, "MutatingWebhookConfiguration")["metadata"]["annotations"]
    certificate = only(objects, "Certificate", NAME)
    assert annotations == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/{certificate['metadata']['name']}"}
    assert certificate["spec"]["dnsNames"] == [f"{NAME}.{NAMESPACE}.svc"]
    # Signed by a CA of our own, which is signed by itself.
    authority = only(objects, "Issuer", certificate["spec"]["issuerRef"]["name"])
    signed = only(objects, "Certificate", f"{NAME}-ca")["spec"]
    assert authority["spec"]["ca"]["secretName"] == signed["secretName"]
    assert only(objects, "Issuer", signed["issuerRef"]["name"])["spec"] == {"selfSigned": {}}


def test_what_cert_manager_leaves_behind_is_in_the_way_of_no_other_source() -> None:
    """Helm refuses to make a Secret that is there and not its own: seen with both Helms."""
    theirs = [each["spec"]["secretName"] for each in render({"certificates": SOURCES["cert-manager"]})
              if each["kind"] == "Certificate"]  # fmt: skip
    ours = [each["metadata"]["name"] for each in render() if each["kind"] == "Secret"]
    assert (len(ours), len(theirs)) == (1, 2)
    assert not {*ours} & {*theirs}


def test_an_issuer_that_is_named_signs_and_none_is_made() -> None:
    objects = render(CHART / "ci" / "cert-manager-values.yaml")
    assert only(objects, "Certificate")["spec"]["issuerRef"]["name"] == "cluster-ca"
    assert [each for each in objects if each["kind"] == "Issuer"] == []


# --- rights ---


@pytest.mark.parametrize("source", SOURCES)
def test_the_rights_are_what_the_program_uses_and_the_secret_and_the_configuration(source: str) -> None:
    objects = render({"certificates": SOURCES[source]})
    *read, last = only(objects, "ClusterRole")["rules"]
    if source == "cert-manager":
        read, last = [*read, last], {}
    assert rights(read) == list(RIGHTS)
    one = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", ("get", "update"))
    assert (rights([last]), last["resourceNames"]) == ([one], [NAME]) if last else source == "cert-manager"
    roles = [each for each in objects if each["kind"] == "Role" and each["metadata"]["name"] == NAME]
    assert [rights(role["rules"]) for role in roles] == (
        [[("", "secrets", ("get", "update"))]] if source == "self" else []
    )
    assert [role["rules"][0]["resourceNames"] for role in roles] == ([[f"{NAME}-tls"]] if source == "self" else [])


def test_each_binding_is_for_an_account_and_a_role_that_are_there() -> None:
    objects = render({"scheduler": {"enabled": True}, "serviceAccount": {"name": "webhook"}})
    accounts = {
        (each["metadata"]["namespace"], each["metadata"]["name"])
        for each in objects
        if each["kind"] == "ServiceAccount"
    }
    roles = {(each["kind"], each["metadata"]["name"]) for each in objects if each["kind"].endswith("Role")}
    roles |= {("ClusterRole", f"system:{name}-scheduler") for name in ("kube", "volume")}
    roles |= {("Role", "extension-apiserver-authentication-reader")}
    bindings = [each for each in objects if each["kind"].endswith("Binding")]
    assert {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings} == roles
    assert {(one["namespace"], one["name"]) for each in bindings for one in each["subjects"]} == accounts
    pods = [each["spec"]["template"] for each in objects if each["kind"] == "Deployment"] + [only(objects, "Pod")]
    assert {(NAMESPACE, pod["spec"]["serviceAccountName"]) for pod in pods} == accounts
