"""What the program has written survives each upgrade, no replica restarts without need, and nothing is left."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from chart import CHART, NAME, Object
from controlplane.api import ApiError
from controlplane.plane import ControlPlane
from webhook_process import REGISTRATIONS

pytestmark = pytest.mark.controlplane

RELEASE = NAMESPACE = "chart-upgrade"
FULLNAME = f"{RELEASE}-{NAME}"
CONFIGURATION = f"{REGISTRATIONS}/{FULLNAME}"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/{FULLNAME}-tls"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{FULLNAME}"
CERTIFICATES = {key: base64.b64encode(key.encode()).decode() for key in ("tls.crt", "tls.key", "ca.crt")}


class Release:
    """The chart as installed by the real Helm, with what the program will have written into its objects."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.ca = base64.b64encode(plane.ca.read_bytes()).decode()

    def helm(self, *arguments: str) -> str:
        return self.plane.helm(*arguments, f"--namespace={NAMESPACE}")

    def upgrade(self, *arguments: str) -> None:
        self.helm("upgrade", RELEASE, str(CHART), *arguments)

    def publish(self) -> None:
        """As the program does it: the whole object, and in it nothing else is changed."""
        configuration = self.plane.request("GET", CONFIGURATION)
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["caBundle"] = self.ca
        self.plane.request("PUT", CONFIGURATION, configuration)
        secret = self.plane.request("GET", SECRET)
        self.plane.request("PUT", SECRET, secret | {"data": CERTIFICATES})

    def webhooks(self) -> list[Object]:
        found: list[Object] = self.plane.request("GET", CONFIGURATION)["webhooks"]
        return found

    def is_intact(self) -> bool:
        bundles = {webhook["clientConfig"].get("caBundle") for webhook in self.webhooks()}
        return bundles == {self.ca} and self.plane.request("GET", SECRET)["data"] == CERTIFICATES

    def generation(self) -> int:
        """Which change of the Deployment this is; the replicas restart with none but a new one."""
        return int(self.plane.request("GET", DEPLOYMENT)["metadata"]["generation"])


@pytest.fixture
def release(plane: ControlPlane) -> Iterator[Release]:
    release = Release(plane)
    release.helm("install", RELEASE, str(CHART), "--create-namespace")
    release.publish()
    yield release
    release.helm("uninstall", RELEASE, "--ignore-not-found")


def test_no_upgrade_touches_what_the_program_has_written(release: Release) -> None:
    release.upgrade("--set=webhook.timeoutSeconds=5")
    assert [webhook["timeoutSeconds"] for webhook in release.webhooks()] == [5, 5]
    assert (release.is_intact(), release.generation()) == (True, 1)
    release.upgrade("--reuse-values", "--set=settings.schedulerNames.old=default-scheduler")
    assert (release.is_intact(), release.generation()) == (True, 2)
    release.upgrade("--reset-values")
    assert [webhook["timeoutSeconds"] for webhook in release.webhooks()] == [3, 3]
    assert (release.is_intact(), release.generation()) == (True, 3)
    release.helm("rollback", RELEASE, "2")
    assert [webhook["timeoutSeconds"] for webhook in release.webhooks()] == [5, 5]
    assert (release.is_intact(), release.generation()) == (True, 3)


def test_vms_go_to_another_scheduler_and_back_by_the_readme_s_commands(release: Release) -> None:
    def names() -> Object:
        (container,) = release.plane.request("GET", DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
        (value,) = (each["value"] for each in container["env"] if each["name"] == "CO_SCHEDULE_SCHEDULER_NAMES")
        found: Object = json.loads(value)
        return found

    readme = (CHART / "README.md").read_text()
    for target in "default-scheduler", NAME:
        setting = f"--set settings.schedulerNames.{NAME}={target}"
        assert setting in readme
        release.upgrade("--reuse-values", *setting.split())
        assert names() == {NAME: target}


def test_a_webhook_that_comes_with_an_upgrade_waits_for_its_bundle_and_takes_no_other_s(release: Release) -> None:
    release.upgrade("--set=settings.steering=false")
    assert release.is_intact()
    release.upgrade("--set=settings.steering=true")
    vms, share_managers = release.webhooks()
    assert vms["clientConfig"]["caBundle"] == release.ca
    assert "caBundle" not in share_managers["clientConfig"]
    assert share_managers["failurePolicy"] == "Ignore"


def test_after_an_uninstall_nothing_is_left(release: Release, plane: ControlPlane) -> None:
    release.upgrade("--set=scheduler.enabled=true,networkPolicy.enabled=true,networkPolicy.apiServers={192.0.2.0/24}")
    release.helm("uninstall", RELEASE)
    kinds = "deployments,services,secrets,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,pdb"
    cluster_wide = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations"
    everywhere = plane.kubectl("get", f"{kinds},{cluster_wide}", "--all-namespaces", "--output=name")
    assert [name for name in everywhere.split() if FULLNAME in name] == []
    with pytest.raises(ApiError, match="404"):
        plane.request("GET", CONFIGURATION)
