"""The rights of `recolocate`: a ClusterRole of their own, off by default, bound to nobody."""

from __future__ import annotations

import pytest
import yaml

from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import NAME, Object, render
from tests.support.paths import EXAMPLES
from webhook.commands.recolocate.command import recolocate

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

ROLE = f"{NAME}-recolocate"
CREATED = {"rbac": {"recolocate": {"create": True}}}
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CronJob": "/apis/batch/v1/namespaces/default/cronjobs",
}


def example() -> list[Object]:
    return list(yaml.safe_load_all((EXAMPLES / "recolocate-cronjob.yaml").read_text()))


def test_the_role_is_off_by_default_bound_to_nobody_and_writes_nothing_but_migrations() -> None:
    assert ROLE not in {each["metadata"]["name"] for each in render()}
    objects = render({"rbac": {"create": False, "recolocate": {"create": True}}})
    (role,) = (each for each in objects if each["kind"] == "ClusterRole")
    assert role["metadata"]["name"] == ROLE
    assert ROLE not in {each["roleRef"]["name"] for each in render(CREATED) if each["kind"].endswith("RoleBinding")}
    writes = [(rule["resources"], rule["verbs"]) for rule in role["rules"] if not {*rule["verbs"]} <= {"get", "list"}]
    assert writes == [(["virtualmachineinstancemigrations"], ["get", "list", "create", "delete"])]


def test_the_api_server_accepts_the_example_cron_job(plane: ControlPlane) -> None:
    for item in example():
        path = PATHS[item["kind"]]
        assert plane.request("POST", f"{path}?dryRun=All&fieldValidation=Strict", {**item, "metadata": unbound(item)})


def unbound(item: Object) -> Object:
    """Return the metadata without the namespace, which the test does not create."""
    return {key: value for key, value in item["metadata"].items() if key != "namespace"}


def test_the_example_cron_job_runs_the_command_with_the_role_of_the_chart() -> None:
    account, binding, job = example()
    assert binding["roleRef"]["name"] == ROLE
    (subject,) = binding["subjects"]
    assert (subject["namespace"], subject["name"]) == (account["metadata"]["namespace"], account["metadata"]["name"])
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    (container,) = pod["containers"]
    assert "env" not in container  # the command reads the settings of the installed webhook
    name, *options = container["args"]
    assert name == recolocate.name
    assert recolocate.make_context(name, options).params["yes"]
