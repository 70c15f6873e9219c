"""Upgrades, rollbacks and uninstalls with Helm 3 and Helm 4.

They keep what the program has written, restart no replica without need, and leave nothing behind. No replica runs
here: it would repair what Helm empties before a test could see it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from tests.docs.test_install import guide
from tests.support.controlplane import build
from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import NAME, Object, container, env_values, find_one
from tests.support.helm_release import HELMS, Release
from tests.support.scenario import recorded_pod
from tests.support.webhook_process import REGISTRATIONS

pytestmark = pytest.mark.controlplane

CERTIFICATES = {key: base64.b64encode(key.encode()).decode() for key in ("tls.crt", "tls.key", "ca.crt")}
KINDS = "deployments,services,secrets,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,pdb,pods,leases"
CLUSTER_WIDE = (
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings"
)
LEADER = {
    "holderIdentity": "replica-1",
    "leaseDurationSeconds": 15,
    "acquireTime": "2026-08-01T12:00:00.000000Z",
    "renewTime": "2026-08-01T12:30:00.000000Z",
    "leaseTransitions": 3,
}
OPTIONAL_OBJECTS = "dashboard.enabled=true,networkPolicy.enabled=true,networkPolicy.apiServers={192.0.2.0/24}"


class PublishedRelease(Release):
    """A release with a certificate, a `caBundle` and a leader, written as the program writes them."""

    def __init__(self, plane: ControlPlane, name: str, program: str) -> None:
        super().__init__(plane, name, program)
        self.ca = base64.b64encode(plane.ca.read_bytes()).decode()
        self.install()
        self.publish()
        self.published = self.plane.request("GET", REGISTRATIONS)["metadata"]["resourceVersion"]

    def publish(self) -> None:
        """Update each whole object, as the program does, and change only these fields."""
        configuration = self.plane.request("GET", self.configuration)
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["caBundle"] = self.ca
        self.plane.request("PUT", self.configuration, configuration)
        secret = self.plane.request("GET", self.secret)
        self.plane.request("PUT", self.secret, secret | {"data": CERTIFICATES})
        lease = self.plane.request("GET", self.lease)
        self.plane.request("PUT", self.lease, lease | {"spec": LEADER})

    def is_intact(self) -> bool:
        certificates = self.plane.request("GET", self.secret)["data"]
        leader = self.plane.request("GET", self.lease)["spec"]
        return (self.ca_bundles(), certificates, leader) == ({self.ca}, CERTIFICATES, LEADER)

    def service(self) -> Object:
        path = f"/api/v1/namespaces/{self.namespace}/services/{self.fullname}"
        found: Object = self.plane.request("GET", path)["spec"]
        return found

    def states_since_publish(self) -> list[Object]:
        """Each state of the configuration since `publish`, oldest first."""
        query = f"watch=true&resourceVersion={self.published}&timeoutSeconds=1"
        field = f"fieldSelector=metadata.name%3D{self.fullname}"
        last = self.plane.request("GET", self.configuration)["metadata"]["resourceVersion"]

        def states() -> list[Object]:
            events = self.plane.kubectl("get", "--raw", f"{REGISTRATIONS}?{query}&{field}").splitlines()
            found: list[Object] = [json.loads(event)["object"] for event in events]
            # If the machine stalls during this second, the watch misses the last states.
            return found if found and found[-1]["metadata"]["resourceVersion"] == last else []

        return self.plane.wait(states, 20, "each state up to the last one")

    def generation(self) -> int:
        """The Deployment's generation. The replicas restart only when it changes."""
        return int(self.deployment()["metadata"]["generation"])

    def timeouts(self) -> list[int]:
        return [webhook["timeoutSeconds"] for webhook in self.webhooks()]


@pytest.fixture(params=HELMS)
def release(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[PublishedRelease]:
    release = PublishedRelease(plane, f"chart-{request.param}", request.param)
    yield release
    release.uninstall("--ignore-not-found")


def test_the_go_mod_of_helm_3_declares_helm_as_a_tool() -> None:
    assert f"tool {build.HELM3}\n" in (build.HELM3_MODULE / "go.mod").read_text()


def test_upgrades_and_rollbacks_keep_what_the_program_has_written(release: PublishedRelease) -> None:
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
    states = release.states_since_publish()
    assert len(states) >= 4
    # The bundle is never missing, not even briefly, so no call fails.
    assert {each["clientConfig"].get("caBundle") for state in states for each in state["webhooks"]} == {release.ca}


def policies(plane: ControlPlane, release: Release) -> set[str]:
    """The kinds of policies that have a binding."""
    policies, bindings = (
        plane.kubectl("get", f"validatingadmissionpolic{ending}", "--output=name").split()
        for ending in ("ies", "ybindings")
    )
    names = [{name.partition("/")[2] for name in listed if release.name in name} for listed in (policies, bindings)]
    assert names[0] == names[1]
    return {name.removeprefix(f"{release.fullname}-") for name in names[0]}


def test_what_is_switched_off_and_on_again_keeps_what_the_program_has_written(
    release: PublishedRelease, plane: ControlPlane
) -> None:
    kept = {"annotations", "events", "own-objects", "webhook-configuration"}
    for change, affinity, steering, bound in (
        ("--reset-values", "ClientIP", "true", kept | {"pods"}),
        ("--set=settings.steering=false,service.sessionAffinity.enabled=false", "None", "false", kept | {"pods"}),
        ("--set=release.enabled=false", "ClientIP", "true", kept),
        ("--set=settings.action=observe", "ClientIP", "true", kept),
        ("--reset-values", "ClientIP", "true", kept | {"pods"}),
    ):
        release.upgrade(change)
        settings = env_values(container(release.deployment()))
        assert settings["CO_SCHEDULE_STEERING"] == steering
        assert release.service()["sessionAffinity"] == affinity
        assert ("sessionAffinityConfig" in release.service()) == (affinity == "ClientIP")
        assert settings["CO_SCHEDULE_SESSION_AFFINITY"] == str(affinity == "ClientIP").lower()
        assert policies(plane, release) == bound
        assert (len(release.webhooks()), release.is_intact()) == (2, True)


def test_a_webhook_added_by_an_upgrade_has_no_ca_bundle_and_fails_open(release: PublishedRelease) -> None:
    release.remove_webhook("share-managers.kubevirt-scheduler.io")
    release.upgrade()
    vms, share_managers = release.webhooks()
    assert vms["clientConfig"]["caBundle"] == release.ca
    assert "caBundle" not in share_managers["clientConfig"]
    assert share_managers["failurePolicy"] == "Ignore"


@pytest.mark.parametrize("release", HELMS[1:], indirect=True)
def test_helm_4_upgrades_a_helm_3_release(release: PublishedRelease) -> None:
    release.upgrade("--set=webhook.timeoutSeconds=5", program="helm")
    assert (release.timeouts(), release.is_intact(), release.generation()) == ([5, 5], True, 1)
    release.upgrade("--reset-values", "--server-side=true", "--force-conflicts", program="helm")
    assert (release.timeouts(), release.is_intact(), release.generation()) == ([3, 3], True, 1)


def test_an_uninstall_leaves_no_object_and_vms_start(release: PublishedRelease, plane: ControlPlane) -> None:
    # With `Fail`, no VM starts while no replica answers, and none runs here.
    release.upgrade(f"--set={OPTIONAL_OBJECTS},webhook.failurePolicy=Fail")
    assert find_one(release.objects(), "MutatingWebhookConfiguration")["webhooks"][0]["failurePolicy"] == "Fail"

    def creation_error() -> str:
        try:
            plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", opted_in_pod())
        except ApiError as error:
            return str(error)
        return ""

    # The API server learns of both changes through a watch.
    assert "failed calling webhook" in plane.wait(creation_error, 20, "a refusal")
    release.uninstall()
    plane.wait(lambda: not creation_error(), 20, "a pod")
    with pytest.raises(ApiError, match="404"):
        plane.request("GET", release.configuration)

    def nothing_left() -> bool:
        names = plane.kubectl("get", f"{KINDS},{CLUSTER_WIDE}", "--all-namespaces", "--output=name")
        return not [name for name in names.split() if release.name in name]

    # The garbage collector deletes the Deployment's pods some time later.
    plane.wait(nothing_left, 60, "nothing left of the release")


def opted_in_pod() -> Object:
    """A virt-launcher pod that is opted in."""
    pod = recorded_pod("vm-start")
    pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule"] = "true"
    return pod


def scheduler_names(release: Release) -> Object:
    """The map of scheduler names that the program gets."""
    found: Object = json.loads(env_values(container(release.deployment()))["CO_SCHEDULE_SCHEDULER_NAMES"])
    return found


def test_the_guides_commands_map_a_scheduler_name_map_it_back_and_remove_it(release: PublishedRelease) -> None:
    page, names = guide("schedulers").read_text(), "settings.schedulerNames"
    release.upgrade(f"--set={names}.other=default-scheduler")
    for target in "default-scheduler", NAME:
        setting = f"--set {names}.{NAME}={target}"
        assert f" --reset-then-reuse-values \\\n    {setting}" in page
        release.upgrade("--reset-then-reuse-values", *setting.split())
        assert scheduler_names(release) == {"other": "default-scheduler", NAME: target}
    assert "`=null` removes the name from the map" in page
    for change in f"{names}.{NAME}=null", "webhook.timeoutSeconds=5":  # for good
        release.upgrade("--reset-then-reuse-values", "--set", change)
        assert scheduler_names(release) == {"other": "default-scheduler"}
