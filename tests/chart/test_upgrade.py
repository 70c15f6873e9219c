"""Upgrades, rollbacks and uninstalls with Helm 3 and Helm 4.

They keep what the program has written, restart no replica without need, and leave nothing behind. No replica runs
here: it would repair what Helm empties before a test could see it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import NAME, Object, container, env_values
from tests.support.helm_release import HELMS, Release
from tests.support.object_history import History
from tests.support.scenario import recorded_pod
from tests.support.webhook_process import REGISTRATIONS

pytestmark = pytest.mark.controlplane

CERTIFICATES = {key: base64.b64encode(key.encode()).decode() for key in ("tls.crt", "tls.key", "ca.crt")}
KINDS = (
    "deployments,services,secrets,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,pdb,pods,leases,"
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings"
)
ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
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
        # As the program does, update each whole object, and change only these fields.
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

    def state(self) -> Object:
        """Return what the upgrades change. The replicas restart only if the Deployment's generation changes."""
        settings = env_values(container(deployment := self.deployment()))
        service = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/services/{self.fullname}")["spec"]
        return {
            "timeouts": [webhook["timeoutSeconds"] for webhook in self.webhooks()],
            "generation": deployment["metadata"]["generation"],
            "steering": settings["CO_SCHEDULE_STEERING"],
            "names": json.loads(settings.get("CO_SCHEDULE_SCHEDULER_NAMES") or "{}"),
            "affinity": (service["sessionAffinity"], "sessionAffinityConfig" in service),
            "policies": self._policies(),
        }

    def _policies(self) -> set[str]:
        """Return the kinds of policies. Each has a binding."""
        policies, bindings = (
            {each["metadata"]["name"] for each in self.plane.request("GET", f"{ADMISSION}{ending}")["items"]}
            for ending in ("ies", "ybindings")
        )
        names = {name for name in policies if self.name in name}
        assert names == {name for name in bindings if self.name in name}
        return {name.removeprefix(f"{self.fullname}-") for name in names}


@pytest.fixture(params=HELMS)
def release(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[PublishedRelease]:
    release = PublishedRelease(plane, f"chart-{request.param}", request.param)
    yield release
    release.uninstall("--ignore-not-found")


NAMES, KEPT = "settings.schedulerNames", "--reset-then-reuse-values"
DEFAULTS: Object = {
    "timeouts": [3, 3],
    "steering": "true",
    "names": {},
    "affinity": ("ClientIP", True),
    "policies": {"annotations", "events", "own-objects", "pods", "webhook-configuration"},
}
OFF = "settings.steering=false,service.sessionAffinity.enabled=false,release.enabled=false"
WITHOUT = {"steering": "false", "affinity": ("None", False), "policies": DEFAULTS["policies"] - {"pods"}}
# The arguments of each upgrade, what it changes besides the defaults, and by how much it raises the generation.
UPGRADES: tuple[tuple[list[str], Object, int], ...] = (
    (["--set=webhook.timeoutSeconds=5"], {"timeouts": [5, 5]}, 0),
    ([f"--set={OFF}"], WITHOUT, 1),
    # The guide's commands map a scheduler name, map it back, and remove it for good.
    (["--reset-values", f"--set={NAMES}.other=a"], {"names": {"other": "a"}}, 1),
    ([KEPT, f"--set={NAMES}.{NAME}=default-scheduler"], {"names": {"other": "a", NAME: "default-scheduler"}}, 1),
    ([KEPT, f"--set={NAMES}.{NAME}={NAME}"], {"names": {"other": "a", NAME: NAME}}, 1),
    ([KEPT, f"--set={NAMES}.{NAME}=null"], {"names": {"other": "a"}}, 1),
    ([KEPT, "--set=webhook.timeoutSeconds=5"], {"names": {"other": "a"}, "timeouts": [5, 5]}, 0),
)  # fmt: skip


def creation_error(plane: ControlPlane) -> str:
    """Create an opted-in VM pod in a dry run, and return the API server's error."""
    pod = recorded_pod("vm-start")
    pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule"] = "true"
    return plane.error("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod)


def test_upgrades_and_rollbacks_keep_what_the_program_has_written_and_an_uninstall_leaves_no_object(
    release: PublishedRelease, plane: ControlPlane
) -> None:
    assert release.state() == DEFAULTS | {"generation": 1}
    generation = 1
    with History(plane, REGISTRATIONS) as history:
        for arguments, changes, restarts in UPGRADES:
            release.upgrade(*arguments)
            generation += restarts
            assert release.state() == DEFAULTS | {"generation": generation} | changes, arguments
            assert release.is_intact()
        release.helm("rollback", release.name, "2")
        assert release.state() == DEFAULTS | {"generation": generation + 1, "timeouts": [5, 5]}
        assert release.is_intact()
        if release.program == "helm3":
            server_side = ["--server-side=true", "--force-conflicts"]
            for timeout, arguments in (4, []), (3, server_side):
                release.upgrade(f"--set=webhook.timeoutSeconds={timeout}", *arguments, program="helm")
                assert (release.state()["timeouts"], release.is_intact()) == ([timeout] * 2, True)
    # The bundle is never missing, not even briefly, so no call fails.
    assert history.ca_bundles(release.fullname) == [plane.ca.read_bytes()]

    # A webhook that an upgrade adds has no bundle. With `Fail`, no VM starts while no replica answers.
    release.remove_webhook("share-managers.kubevirt-scheduler.io")
    release.upgrade(f"--set={OPTIONAL_OBJECTS},webhook.failurePolicy=Fail", program="helm")
    vms, share_managers = release.webhooks()
    assert (vms["clientConfig"]["caBundle"], "caBundle" in share_managers["clientConfig"]) == (release.ca, False)
    assert (vms["failurePolicy"], share_managers["failurePolicy"]) == ("Fail", "Ignore")
    # The API server learns of both changes through a watch.
    assert "failed calling webhook" in plane.wait(lambda: creation_error(plane), 20, "a refusal")
    release.uninstall()
    plane.wait(lambda: not creation_error(plane), 20, "a pod")

    def nothing_left() -> bool:
        names = plane.kubectl("get", KINDS, "--all-namespaces", "--output=name")
        return not [name for name in names.split() if release.name in name]

    # The garbage collector deletes the Deployment's pods some time later.
    plane.wait(nothing_left, 60, "nothing left of the release")
