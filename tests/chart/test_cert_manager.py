"""The chart with certificates from another source, mainly the real cert-manager: no change fails a pod creation.

`failurePolicy: Fail` makes each failed call visible. Each creation uses a new connection, because the API server
verifies a certificate only when it opens a connection, and then reuses the connection.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest

from certs.authority import split
from tests.support.authority import issue_ca, issue_leaf
from tests.support.controlplane import build
from tests.support.controlplane.api import LOOPBACK, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, free_ports, running
from tests.support.helm_release import LONG_TIMEOUT, Release, Replicas
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.pod_stream import PodStream
from tests.support.scenario import Scenario

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.needs(build.CERT_MANAGER),
    pytest.mark.usefixtures("cert_manager"),
]

CERT_MANAGER, FAIL = (
    "--set=certificates.source=cert-manager",
    "--set=webhook.failurePolicy=Fail,shutdown.preStopSeconds=1",
)
CERT_MANAGER_SECRETS = {"-ca", "-cert-manager-tls"}
RENEWAL_REQUESTED = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by `cmctl renew`"}


@pytest.fixture(scope="module")
def cert_manager(plane: ControlPlane) -> Iterator[None]:
    """Run cert-manager, and install its CRDs."""
    program, crds = build.rare(build.CERT_MANAGER).values()
    # Other tests may have left CRDs with the same names.
    plane.kubectl("delete", "--ignore-not-found", "-f", str(crds))
    plane.kubectl("create", "-f", str(crds))
    plane.kubectl("wait", "--for=condition=Established", "-f", str(crds))
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    command = [str(program), f"--kubeconfig={plane.kubeconfig}", f"--health={address}"]
    with running(Process("cert-manager", command, f"http://{address}/healthz", plane.folder)):
        yield
    plane.kubectl("delete", "-f", str(crds))


class InstalledChart:
    """A release, its replicas, and a scenario in which VMs start."""

    def __init__(self, plane: ControlPlane, release: Release, replicas: Replicas, scenario: Scenario) -> None:
        self.plane, self.release, self.replicas, self.scenario = plane, release, replicas, scenario
        certificates = f"/apis/cert-manager.io/v1/namespaces/{release.namespace}/certificates"
        self.certificate_path = f"{certificates}/{release.fullname}"
        self.secret_path = release.secret.replace("-tls", "-cert-manager-tls")

    def secret_field(self, name: str, secret_path: str = "") -> bytes:
        return base64.b64decode(self.plane.request("GET", secret_path or self.secret_path)["data"][name])

    def renew(self, certificate_path: str) -> None:
        """Request the renewal of a Certificate, like `cmctl renew`."""

        def request_renewal() -> Object:
            certificate = self.plane.request("GET", certificate_path)
            certificate["status"]["conditions"].append(RENEWAL_REQUESTED)
            return self.plane.request("PUT", f"{certificate_path}/status", certificate)

        # `wait` retries after a conflict: cert-manager writes the status, too.
        self.plane.wait(request_renewal, 20, "the renewal request")

    def renew_leaf_and_ca(self) -> None:
        ca_secret = self.secret_path.replace("-cert-manager-tls", "-ca")
        before = self.secret_field("tls.crt", ca_secret)
        self.renew(f"{self.certificate_path}-ca")
        self.plane.wait(lambda: self.secret_field("tls.crt", ca_secret) != before, 20, "a new CA")
        self.renew(self.certificate_path)

    def all_serve(self, certificate: bytes) -> bool:
        """Return whether all replicas serve this certificate."""
        served = {ssl.get_server_certificate(each.address).strip() for each in self.replicas.running}
        return served == {certificate.decode().strip()}

    def create_provided_secret(self, name: str) -> None:
        """Create a Secret with a leaf and its CA, as an operator does for the source `provided`."""
        now = datetime.now(UTC)
        ca = issue_ca(now)
        leaf = issue_leaf(ca, [f"{self.release.fullname}.{self.release.namespace}.svc"], now)
        fields = {"tls.crt": leaf.certificate, "tls.key": leaf.key, "ca.crt": ca.certificate}
        data = {field: base64.b64encode(content).decode() for field, content in fields.items()}
        self.plane.request("POST", self.release.secret.rpartition("/")[0], {"metadata": {"name": name}, "data": data})

    def remove_ca_bundles(self) -> None:
        """Remove the `caBundle` of both webhooks."""
        paths = (f"/webhooks/{number}/clientConfig/caBundle" for number in range(2))
        self.plane.request("PATCH", self.release.configuration, [{"op": "remove", "path": path} for path in paths])

    def ca_bundle(self) -> bytes:
        """Return the one `caBundle`. Raises ValueError if the webhooks have different ones."""
        (found,) = self.release.ca_bundles()
        return base64.b64decode(found)

    @contextmanager
    def creating_vm_pods(self) -> Iterator[PodStream]:
        """Create VM pods during the block, and after it until more than ten others are created."""
        before = self.connections_opened()
        with PodStream.of_scenario(self.scenario, threads=1, after_each=self.replicas.close_connections) as stream:
            yield stream
            last, failed = stream.count, len(stream.failed)
            self.plane.wait(lambda: stream.count > last + 10, 20, "VM pods after the block")
        assert len(stream.failed) <= failed + 1  # one may have been in progress
        assert self.connections_opened() - before >= stream.count - 1  # the first may reuse a connection

    def connections_opened(self) -> int:
        return self.plane.connections_opened(
            *(each.address for each in self.replicas.running + self.replicas.terminating)
        )


@contextmanager
def installed_chart(plane: ControlPlane, longhorn: Longhorn, name: str, *values: str) -> Iterator[InstalledChart]:
    """Install the chart with `failurePolicy: Fail`, and yield when its webhooks decide. Uninstall it at the end."""
    release = Release(plane, name).install(FAIL, LONG_TIMEOUT, *values)
    try:
        with Replicas(release) as replicas:
            plane.wait(release.has_ca_bundle, 20, "the caBundle of both webhooks")
            with closing(Scenario(plane, longhorn, None)) as scenario:
                plane.wait(lambda: scenario.decision("no-such-claim"), 20, "a decision")
                yield InstalledChart(plane, release, replicas, scenario)
    finally:
        release.uninstall()


def secret_suffixes(release: Release) -> set[str]:
    """Return the names of the release's Secrets without the prefix, except those in which Helm stores releases."""
    found = release.plane.request("GET", f"/api/v1/namespaces/{release.namespace}/secrets")["items"]
    names = [each["metadata"]["name"] for each in found if not each["metadata"]["name"].startswith("sh.helm.")]
    return {name.removeprefix(release.fullname) for name in names}


# The sources that follow cert-manager, one after the other. The injector still owns a field of each webhook, so the
# first upgrade would fail if it removed the webhook of share-managers: Helm 4 (server-side apply) can't.
SOURCES = {
    "self": "--set=certificates.source=self,settings.steering=false",
    "provided": "--set=certificates.source=provided,certificates.secretName=mine",
    "cert-manager": "--set=certificates.source=cert-manager,certificates.secretName=",
}


def test_no_renewal_and_no_change_of_the_source_fails_a_creation(
    plane: ControlPlane, longhorn: Longhorn, measured: Measured
) -> None:
    with installed_chart(plane, longhorn, "chart-sources", CERT_MANAGER) as chart:
        first_ca, trusted = chart.secret_field("ca.crt"), split(chart.ca_bundle())
        before, began = chart.secret_field("tls.crt"), time.monotonic()
        with chart.creating_vm_pods() as stream:
            chart.renew_leaf_and_ca()
            plane.wait(lambda: chart.secret_field("tls.crt") != before, 20, "a new leaf in the Secret")
            plane.wait(lambda: chart.all_serve(chart.secret_field("tls.crt")), 20, "all replicas serve the new leaf")
            served = time.monotonic() - began
        measured(f"renewal: served after {served:.1f} s, {len(stream.failed)} of {stream.count} creations failed")
        assert (stream.failed, stream.missed) == ([], [])
        # cert-manager may issue a CA twice, so there may be one more.
        published = split(chart.ca_bundle())
        assert {*trusted, *split(chart.secret_field("ca.crt"))} <= {*published}
        assert len(published) == len({*published})
        # The injector adds the new CA. A leaf of the old CA stays trusted until an operator removes the `caBundle`.
        assert first_ca in chart.ca_bundle()
        assert chart.secret_field("ca.crt") != first_ca
        chart.remove_ca_bundles()
        plane.wait(
            lambda: chart.release.has_ca_bundle() and chart.ca_bundle() == chart.secret_field("ca.crt"),
            20,
            "the new CA alone",
        )
        assert chart.replicas.error_lines() == []
        chart.create_provided_secret("mine")
        for source, values in SOURCES.items():
            trusted = set(split(chart.ca_bundle()))
            with chart.creating_vm_pods() as stream:
                chart.release.upgrade("--reuse-values", values)
                assert chart.replicas.reconcile() == 2
                assert set(chart.replicas.exit_codes()) == {0}
            measured(f"to {source}: {stream.count} creations, {len(stream.failed)} failed")
            assert (stream.failed, stream.missed) == ([], [])
            # The old CAs stay trusted: with cert-manager until they expire, otherwise for some minutes.
            assert trusted < set(split(chart.ca_bundle())) or source == "cert-manager"
            # cert-manager may still have a Secret with the key of a certificate that it is issuing.
            kept = CERT_MANAGER_SECRETS | {"mine"} | ({"-tls"} if source == "self" else set())
            plane.wait(lambda kept=kept: secret_suffixes(chart.release) == kept, 20, f"Secrets {kept}")
