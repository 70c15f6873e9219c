"""The chart with certificates of another source, the real cert-manager's above all: who is trusted when it changes.

With `failurePolicy: Fail`, so that nothing is missed in silence, and a handshake for each creation: the API server
keeps its connections, and asks nobody anew on them.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest

from certs.authority import issue_ca, issue_leaf
from tests.support.controlplane import build
from tests.support.controlplane.api import LOOPBACK, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, free_ports, running
from tests.support.controlplane.rights import Right, is_granted
from tests.support.helm_release import HELMS, PATIENT, Release, Replicas, build_both
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.object_history import History
from tests.support.scenario import CO_SCHEDULED, World
from tests.support.vm_starts import Creations, vms_starting
from tests.support.webhook_process import REGISTRATIONS

pytestmark = pytest.mark.controlplane

CHOSEN, FAIL = "--set=certificates.source=cert-manager", "--set=webhook.failurePolicy=Fail"
INJECTOR = "cert-manager-cainjector"
OURS, THEIRS = {"-tls"}, {"-ca", "-cert-manager-tls"}
UPGRADES = (
    "--set=webhook.excludedNamespaces={backup}",
    "--set=settings.steering=false",
    "--set=webhook.timeoutSeconds=9",
    "--set=settings.steering=true",
)
MANUALLY = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by `cmctl renew`"}


@pytest.fixture(scope="module")
def cert_manager(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[None]:
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        program, definitions = build.cert_manager()
    # Other tests' may be there, of the same names.
    plane.kubectl("delete", "--ignore-not-found", "-f", str(definitions))
    plane.kubectl("create", "-f", str(definitions))
    plane.kubectl("wait", "--for=condition=Established", "-f", str(definitions))
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    command = [str(program), f"--kubeconfig={plane.kubeconfig}", f"--health={address}"]
    with running(Process("cert-manager", command, f"http://{address}/healthz", plane.folder)):
        yield
    plane.kubectl("delete", "-f", str(definitions))


class Installed:
    """A release, its replicas, and VMs that start."""

    def __init__(self, plane: ControlPlane, release: Release, replicas: Replicas, world: World) -> None:
        self.plane, self.release, self.replicas, self.world = plane, release, replicas, world
        certificates = f"/apis/cert-manager.io/v1/namespaces/{release.namespace}/certificates"
        self.certificate = f"{certificates}/{release.fullname}"
        self.secret = release.secret.replace("-tls", "-cert-manager-tls")

    def field(self, name: str, secret: str = "") -> bytes:
        return base64.b64decode(self.plane.request("GET", secret or self.secret)["data"][name])

    def renew(self, certificate: str) -> None:
        """As `cmctl renew` does it."""

        def asked() -> Object:
            found = self.plane.request("GET", certificate)
            found["status"]["conditions"].append(MANUALLY)
            return self.plane.request("PUT", f"{certificate}/status", found)

        self.plane.wait(asked, 20, "a renewal to be asked for")  # others write there, too

    def renew_both(self) -> None:
        authority = self.secret.replace("-cert-manager-tls", "-ca")
        before = self.field("tls.crt", authority)
        self.renew(f"{self.certificate}-ca")
        self.plane.wait(lambda: self.field("tls.crt", authority) != before, 20, "another CA")
        self.renew(self.certificate)

    def delete(self) -> None:
        self.plane.request("DELETE", self.secret)

    def shows(self, certificate: bytes) -> bool:
        """Whether each replica shows it to whoever connects."""
        shown = {ssl.get_server_certificate(each.address).strip() for each in self.replicas.running}
        return shown == {certificate.decode().strip()}

    def provide(self, name: str) -> None:
        """Put a certificate of somebody's own into a Secret."""
        now = datetime.now(UTC)
        ca = issue_ca(now)
        leaf = issue_leaf(ca, [f"{self.release.fullname}.{self.release.namespace}.svc"], now)
        fields = {"tls.crt": leaf.certificate, "tls.key": leaf.key, "ca.crt": ca.certificate}
        data = {field: base64.b64encode(content).decode() for field, content in fields.items()}
        self.plane.request("POST", self.release.secret.rpartition("/")[0], {"metadata": {"name": name}, "data": data})

    def right_to_publish(self) -> Right:
        name, group = self.release.fullname, "admissionregistration.k8s.io"
        what = {"verb": "update", "group": group, "resource": "mutatingwebhookconfigurations", "name": name}
        return f"system:serviceaccount:{self.release.namespace}:{name}", what

    def secrets(self) -> set[str]:
        """What the names of its Secrets end in, those of Helm left out."""
        found = self.plane.request("GET", f"/api/v1/namespaces/{self.release.namespace}/secrets")["items"]
        names = [each["metadata"]["name"] for each in found if not each["metadata"]["name"].startswith("sh.helm.")]
        return {name.removeprefix(self.release.fullname) for name in names}

    def empty(self) -> None:
        """Take the `caBundle` away from both webhooks."""
        paths = (f"/webhooks/{number}/clientConfig/caBundle" for number in range(2))
        self.plane.request("PATCH", self.release.configuration, [{"op": "remove", "path": path} for path in paths])

    def bundle(self) -> bytes:
        (found,) = self.release.bundles()
        return base64.b64decode(found)

    @contextmanager
    def creating(self) -> Iterator[Creations]:
        """Create VMs' pods until some more were created after the end."""
        before = self.dialled()
        with vms_starting(self.world, 1, self.replicas.hang_up) as creations:
            yield creations
            last, failed = creations.count, len(creations.failed)
            self.plane.wait(lambda: creations.count > last + 10, 20, "VMs after the end")
        assert len(creations.failed) <= failed + 1  # the one that was under way
        assert self.dialled() - before >= creations.count - 1  # the first may have found a connection

    def dialled(self) -> int:
        return self.plane.dialled(*(each.address for each in self.replicas.running + self.replicas.ending))


@contextmanager
def installed(
    plane: ControlPlane, longhorn: Longhorn, name: str, *values: str, helm: str = "helm"
) -> Iterator[Installed]:
    release = Release(plane, name, helm).install(FAIL, PATIENT, *values)
    try:
        with Replicas(release) as replicas:
            plane.wait(release.is_called, 20, "the caBundle of both webhooks")
            with closing(World(plane, longhorn, None)) as world:
                plane.wait(lambda: world.decision("no-such-claim"), 20, "a decision")
                yield Installed(plane, release, replicas, world)
    finally:
        release.uninstall()


def writers(configuration: Object) -> set[str]:
    """Who has written a `caBundle` that is there."""
    managed = configuration["metadata"]["managedFields"]
    return {each["manager"] for each in managed if '"f:caBundle"' in json.dumps(each["fieldsV1"])}


def trusting(configuration: Object) -> set[str]:
    """The webhooks that have a `caBundle`."""
    return {each["name"] for each in configuration["webhooks"] if each["clientConfig"].get("caBundle")}


@pytest.mark.usefixtures("cert_manager")
@pytest.mark.parametrize("helm", HELMS)
def test_its_injector_alone_publishes_and_no_upgrade_empties_what_it_wrote(
    request: pytest.FixtureRequest, plane: ControlPlane, longhorn: Longhorn, helm: str
) -> None:
    build_both(request)
    name = f"chart-injected-{helm}"
    with installed(plane, longhorn, name, CHOSEN, "--set=replicas=1", helm=helm) as found:
        found.world.add_nodes(4)
        _, node = found.world.warm_volume()
        plane.wait(lambda: found.world.node_meant("disk1") == node, 20, "a decision that knows of the share-manager")
        vm = found.world.start_vm("vm1", "disk1")
        assert (found.world.running(vm), found.world.annotations(vm)[CO_SCHEDULED]) == (node, node)
        with History(plane, REGISTRATIONS) as history:
            for change in UPGRADES:
                found.release.upgrade("--reuse-values", change)
                found.replicas.reconcile()
            found.release.helm("rollback", name, "1")
        versions = history.of(found.release.fullname)
        assert len(versions) == 1 + len(UPGRADES) + 1
        # Not for one moment, so not for one call.
        assert [trusting(each) for each in versions] == [trusting(versions[0])] * len(versions)
        assert {who for each in versions for who in writers(each)} == {INJECTOR}
        assert not is_granted(plane, found.right_to_publish())
        assert found.replicas.complaints() == []
    assert found.secrets() == THEIRS  # as the chart's README says


@pytest.mark.usefixtures("cert_manager")
def test_what_it_renews_is_served_without_a_restart_and_without_a_failed_creation(
    plane: ControlPlane, longhorn: Longhorn, measured: Measured
) -> None:
    with installed(plane, longhorn, "chart-renewed", CHOSEN) as found:
        ways: dict[str, Callable[[], None]] = {
            "renewed": lambda: found.renew(found.certificate),
            "deleted": found.delete,
            "renewed, and its CA": found.renew_both,
        }
        first = found.field("ca.crt")
        for what, begin in ways.items():
            before, began = found.field("tls.crt"), time.monotonic()
            with found.creating() as creations:
                begin()
                plane.wait(lambda before=before: found.field("tls.crt") != before, 20, "another certificate")
                plane.wait(lambda: found.shows(found.field("tls.crt")), 20, "each replica with the other certificate")
                served = time.monotonic() - began
            failed = f"{len(creations.failed)} of {creations.count} creations failed"
            measured(f"{what}: served after {served:.1f} s, {failed}")
            assert (creations.failed, creations.missed) == ([], [])
            assert found.bundle().count(b"BEGIN") == 1 + (begin == found.renew_both)
        # Whoever still shows a certificate of the old CA is trusted, until somebody ends that.
        assert first in found.bundle()
        assert found.field("ca.crt") != first
        found.empty()
        plane.wait(
            lambda: found.release.is_called() and found.bundle() == found.field("ca.crt"), 20, "the new CA alone"
        )
        assert found.replicas.complaints() == []


# How to go there, how to go back, and the Secrets that are there meanwhile.
SOURCES = {
    "cert-manager": (CHOSEN, "--set=certificates.source=self", THEIRS),
    "provided": (
        "--set=certificates.source=provided,certificates.secretName=mine",
        "--set=certificates.source=self,certificates.secretName=",
        {"mine"},
    ),
}


@pytest.mark.usefixtures("cert_manager")
@pytest.mark.parametrize("source", SOURCES)
def test_from_certificates_of_its_own_to_another_source_and_back_no_creation_fails(
    plane: ControlPlane, longhorn: Longhorn, source: str, measured: Measured
) -> None:
    there, back, others = SOURCES[source]
    with installed(plane, longhorn, f"to-{source}") as found:
        found.provide("mine")
        # Whoever was trusted stays so: with cert-manager until it expires, else for some minutes.
        for way, trusted, secrets in (there, 2, others), (back, 3, OURS | others):
            with found.creating() as creations:
                found.release.upgrade("--reuse-values", way)
                assert found.replicas.reconcile() == 2
                found.replicas.statuses()
            to = source if way == there else "self"
            measured(f"to {to}: {creations.count} creations, {len(creations.failed)} failed")
            assert (creations.failed, creations.missed) == ([], [])
            assert found.bundle().count(b"BEGIN") == trusted
            assert found.secrets() - {"mine"} == secrets - {"mine"}
        # An injector still owns a part of each webhook, so Helm 4 could take none of them away.
        found.release.upgrade("--reuse-values", "--set=settings.steering=false")
