"""The rights of `recolocate`, and the CronJob that runs it at night: both off by default."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.helm_chart import CHART, NAME, NAMESPACE, Object, find_one, render
from webhook.commands.recolocate.command import recolocate

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

ROLE = f"{NAME}-recolocate"
CREATED = {"rbac": {"recolocate": {"create": True}}}
NIGHTLY: Object = {"recolocate": {"schedule": "0 2 * * *"}}


def nightly() -> dict[str, Object]:
    """What `recolocate.schedule` creates, by kind."""
    return {each["kind"]: each for each in render(NIGHTLY) if each["metadata"]["name"] == ROLE}


# Options that make no sense in a CronJob.
EXCLUDED = {
    "--yes",
    "--output",
    "-o",
    "--restart-list",
    "--snapshot",
    "--kubeconfig",
    "--context",
    "--as",
    "--as-group",
}


def test_the_schema_accepts_the_options_of_the_command_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    pattern = schema["properties"]["recolocate"]["properties"]["args"]["items"]["pattern"]
    context = recolocate.make_context("recolocate", [])
    names = {name for param in recolocate.get_params(context) for name in param.opts if name.startswith("-")}
    names -= {"--help", "-h"}
    assert {name for name in names if not re.search(pattern, name)} == EXCLUDED
    assert not re.search(pattern, "--maximum=5")


def test_the_role_is_off_by_default_and_bound_to_nobody() -> None:
    """tests/docs/test_rights.py has its rights."""
    assert ROLE not in {each["metadata"]["name"] for each in render()}
    objects = render({"rbac": {"create": False, "recolocate": {"create": True}}})
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"] == [ROLE]
    assert ROLE not in {each["roleRef"]["name"] for each in render(CREATED) if each["kind"].endswith("RoleBinding")}


def test_the_nightly_cron_job_runs_the_command_with_its_role_one_at_a_time_and_within_its_window() -> None:
    found = nightly()
    assert {*found} == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "CronJob"}
    assert found["ClusterRoleBinding"]["roleRef"]["name"] == ROLE
    assert found["ClusterRoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": ROLE, "namespace": NAMESPACE}]
    spec = found["CronJob"]["spec"]
    job = spec["jobTemplate"]["spec"]
    assert (spec["schedule"], spec["concurrencyPolicy"]) == ("0 2 * * *", "Forbid")
    assert (job["backoffLimit"], job["activeDeadlineSeconds"]) == (0, 14400)
    assert job["template"]["spec"]["serviceAccountName"] == ROLE
    (container,) = job["template"]["spec"]["containers"]
    assert "env" not in container  # the command reads the settings of the installed webhook
    name, *options = container["args"]
    assert name == recolocate.name
    context = recolocate.make_context(name, options)
    chosen = context.params | context.meta
    assert (chosen["yes"], chosen["all_namespaces"], chosen["most"], chosen["output"]) == (True, True, 10, "json")
    service = find_one(render(NIGHTLY), "Service")["spec"]["selector"]
    assert not service.items() <= job["template"]["metadata"]["labels"].items()
