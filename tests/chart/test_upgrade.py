"""What the program has written survives each upgrade, no replica restarts without need, and nothing is left.

With both Helms. No replica runs here: it would repair what Helm has emptied before anybody could see it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from tests.support.controlplane import build
from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import CHART, NAME, Object, container, only, variables
from tests.support.helm_release import HELMS, Release, build_both
from tests.support.scenario import recorded
from tests.support.webhook_process import REGISTRATIONS

pytestmark = pytest.mark.controlplane

CERTIFICATES = {key: base64.b64encode(key.encode()).decode() for key in ("tls.crt", "tls.key", "ca.crt")}
KINDS = "deployments,services,secrets,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,pdb,pods"
CLUSTER_WIDE = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations"
ANYTHING = (
    "scheduler.enabled=true,dashboard.enabled=true,networkPolicy.enabled=true,networkPolicy.apiServers={192.0.2.0/24}"
)


class Written(Release):
    """A release with what the program will have written into its objects."""

    def __init__(self, plane: ControlPlane, name: str, program: str) -> None:
        super().__init__(plane, name, program)
        self.ca = base64.b64encode(plane.ca.read_bytes()).decode()
        self.install()
        self.publish()
        self.published = self.plane.request("GET", REGISTRATIONS)["metadata"]["resourceVersion"]

    def publish(self) -> None:
        """As the program does it: the whole object, and in it nothing else is changed."""
        configuration = self.plane.request("GET", self.configuration)
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["caBundle"] = self.ca
        self.plane.request("PUT", self.configuration, configuration)
        secret = self.plane.request("GET", self.secret)
        self.plane.request("PUT", self.secret, secret | {"data": CERTIFICATES})

    def is_intact(self) -> bool:
        return self.bundles() == {self.ca} and self.plane.request("GET", self.secret)["data"] == CERTIFICATES

    def changes(self) -> list[Object]:
        """Each state that the configuration has been in since the program wrote it."""
        query = f"watch=true&resourceVersion={self.published}&timeoutSeconds=1"
        field = f"fieldSelector=metadata.name%3D{self.fullname}"
        last = self.plane.request("GET", self.configuration)["metadata"]["resourceVersion"]

        def states() -> list[Object]:
            events = self.plane.kubectl("get", "--raw", f"{REGISTRATIONS}?{query}&{field}").splitlines()
            found: list[Object] = [json.loads(event)["object"] for event in events]
            # In a second that the machine has stalled away not all of them come.
            return found if found and found[-1]["metadata"]["resourceVersion"] == last else []

        return self.plane.wait(states, 20, "each state up to the last one")

    def generation(self) -> int:
        """Which change of the Deployment this is; the replicas restart with none but a new one."""
        return int(self.deployment()["metadata"]["generation"])

    def timeouts(self) -> list[int]:
        return [webhook["timeoutSeconds"] for webhook in self.webhooks()]


@pytest.fixture(params=HELMS)
def release(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[Written]:
    build_both(request)
    release = Written(plane, f"chart-{request.param}", request.param)
    yield release
    release.uninstall("--ignore-not-found")


def test_helm_3_is_built_from_what_its_go_mod_declares() -> None:
    assert f"tool {build.HELM3}\n" in (build.HELM3_MODULE / "go.mod").read_text()


def test_no_upgrade_touches_what_the_program_has_written(release: Written) -> None:
    release.upgrade("--set=webhook.timeoutSeconds=5")
    assert release.timeouts() == [5, 5]
    assert (release.is_intact(), release.generation()) == (True, 1)
    release.upgrade("--reuse-values", "--set=settings.schedulerNames.old=default-scheduler")
    assert (release.is_intact(), release.generation()) == (True, 2)
    release.upgrade("--reset-values")
    assert release.timeouts() == [3, 3]
    assert (release.is_intact(), release.generation()) == (True, 3)
    release.helm("rollback", release.name, "2")
    assert release.timeouts() == [5, 5]
    assert (release.is_intact(), release.generation()) == (True, 3)
    states = release.changes()
    assert len(states) >= 4
    # Not for one moment, so not for one call.
    assert {each["clientConfig"].get("caBundle") for state in states for each in state["webhooks"]} == {release.ca}


def test_steering_goes_and_comes_with_the_bundle_in_place(release: Written) -> None:
    for steering in "false", "true":
        release.upgrade(f"--set=settings.steering={steering}")
        assert release.is_intact()
        assert len(release.webhooks()) == 2


def test_a_webhook_that_comes_with_an_upgrade_waits_for_its_bundle_and_takes_no_other_s(release: Written) -> None:
    release.take_away("share-managers.kubevirt-scheduler.io")
    release.upgrade()
    vms, share_managers = release.webhooks()
    assert vms["clientConfig"]["caBundle"] == release.ca
    assert "caBundle" not in share_managers["clientConfig"]
    assert share_managers["failurePolicy"] == "Ignore"


@pytest.mark.parametrize("release", ["helm3"], indirect=True)
def test_what_helm_3_has_installed_helm_4_upgrades(release: Written) -> None:
    release.upgrade("--set=webhook.timeoutSeconds=5", program="helm")
    assert (release.timeouts(), release.is_intact(), release.generation()) == ([5, 5], True, 1)
    release.upgrade("--reset-values", "--server-side=true", "--force-conflicts", program="helm")
    assert (release.timeouts(), release.is_intact(), release.generation()) == ([3, 3], True, 1)


def test_after_an_uninstall_nothing_is_left_and_vms_start_at_once(release: Written, plane: ControlPlane) -> None:
    # With `Fail` no VM starts while nobody answers; nobody does here.
    release.upgrade(f"--set={ANYTHING},webhook.failurePolicy=Fail")
    assert only(release.objects(), "MutatingWebhookConfiguration")["webhooks"][0]["failurePolicy"] == "Fail"

    def complaint() -> str:
        try:
            plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", opted_in())
        except ApiError as error:
            return str(error)
        return ""

    # The API server learns of both by a watch.
    assert "failed calling webhook" in plane.wait(complaint, 20, "a refusal")
    release.uninstall()
    plane.wait(lambda: not complaint(), 20, "a pod")
    with pytest.raises(ApiError, match="404"):
        plane.request("GET", release.configuration)

    def nothing_left() -> bool:
        everywhere = plane.kubectl("get", f"{KINDS},{CLUSTER_WIDE}", "--all-namespaces", "--output=name")
        return not [name for name in everywhere.split() if release.name in name]

    # The Deployment's pods go with it, when the garbage collector comes to it.
    plane.wait(nothing_left, 60, "nothing left of the release")


def opted_in() -> Object:
    """A VM's pod, opted in."""
    pod = recorded("vm-start")
    pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule"] = "true"
    return pod


def scheduler_names(release: Release) -> Object:
    """The map that the program is given."""
    found: Object = json.loads(variables(container(release.deployment()))["CO_SCHEDULE_SCHEDULER_NAMES"])
    return found


@pytest.mark.parametrize("release", ["helm"], indirect=True)
def test_vms_go_to_another_scheduler_and_back_by_the_readme_s_commands(release: Written) -> None:
    readme = (CHART / "README.md").read_text()
    for target in "default-scheduler", NAME:
        setting = f"--set settings.schedulerNames.{NAME}={target}"
        assert f" --reset-then-reuse-values \\\n    {setting}" in readme
        release.upgrade("--reset-then-reuse-values", *setting.split())
        assert scheduler_names(release) == {NAME: target}


def test_a_scheduler_s_name_is_taken_out_by_the_readme_s_option_and_stays_out(release: Written) -> None:
    readme, names = (CHART / "README.md").read_text(), "settings.schedulerNames"
    assert f"--set {names}.kubevirt-scheduler=null" in readme
    release.upgrade(f"--set={names}.{NAME}=default-scheduler,{names}.other=default-scheduler")
    for change in f"{names}.{NAME}=null", "webhook.timeoutSeconds=5":
        release.upgrade("--reset-then-reuse-values", "--set", change)
        assert scheduler_names(release) == {"other": "default-scheduler"}
