"""Three replicas manage one certificate while the API server calls them. They start together on an empty Secret."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from certs.authority import read, signed_by, split
from tests.support.controlplane.plane import ControlPlane
from tests.support.installation import Installation, Replica, create_kubeconfig, seconds_until
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.object_history import History
from tests.support.paths import ROOT
from tests.support.pod_stream import PodStream
from tests.support.webhook_process import NAMESPACE, PROGRAM, REGISTRATIONS

pytestmark = pytest.mark.controlplane

NAME = "self-managed"
PORTS = 40
# Seconds. Short, because a rotation waits until the last leaf of the old CA expires. But a renewal is due when a
# third is left, and that third must be twice the time between two passes.
LEAF_LIFETIME = 24
SPREAD = 2  # seconds
STARTS = 'kubevirt_scheduler_certificate_steps_total{step="start"}'


class ReplicaGroup:
    """Three replicas. The API server calls `called`, but not `standby`."""

    def __init__(self, installation: Installation, replicas: list[Replica]) -> None:
        self.installation, self.replicas = installation, replicas
        *self.called, self.standby = replicas

    def all_serve_the_secret(self) -> bool:
        """Return whether all replicas serve the leaf in the Secret to a client that trusts the published CAs."""
        return self._serve_the_secret(self.replicas)

    def called_serve_the_secret(self) -> bool:
        return self._serve_the_secret(self.called)

    def connections_opened(self) -> int:
        """Return how many connections the API server has opened so far. It closes those that are idle for 90 s."""
        return self.installation.plane.connections_opened(*(one.address for one in self.called))

    def _serve_the_secret(self, replicas: list[Replica]) -> bool:
        (ca_bundle,), leaf = self.installation.ca_bundles(), self.installation.secret_field("tls.crt")
        return all(one.served_certificate(ca_bundle, self.installation.host) == leaf for one in replicas)


@pytest.fixture(scope="module")
def group(plane: ControlPlane, longhorn: Longhorn) -> Iterator[ReplicaGroup]:
    del longhorn  # needed for its CRD
    installation = Installation(plane, NAME, PORTS).create_certificate_objects().create_service()
    options = [f"--tls-secret={NAMESPACE}/{NAME}-tls", f"--tls-name={installation.host}"]
    options += [f"--webhook-configuration={NAME}"]
    program = [sys.executable, str(ROOT / "tests/e2e/short_lived_certificates.py"), str(LEAF_LIFETIME), str(SPREAD)]
    kubeconfig = create_kubeconfig(plane, NAME)
    replicas = [Replica(plane, f"{NAME}-{number}", kubeconfig, *options, program=program) for number in range(3)]
    with ExitStack() as stack:
        stack.callback(installation.delete_service)
        stack.callback(installation.delete_certificate_objects)
        stack.callback(stop, replicas)
        for each in replicas:
            each.process.start()
        for each in replicas:
            each.process.wait_until_healthy()
        group = ReplicaGroup(installation, replicas)
        plane.wait(group.all_serve_the_secret, 20, "all replicas serve one leaf")
        assert sum(each.metric(STARTS) for each in replicas) == 1, "one replica created the CA"
        assert len(split(installation.secret_field("ca.crt"))) == 1
        installation.route(*(each.address for each in group.called))
        plane.wait(lambda: not installation.create_pod(), 20, "the first successful webhook call")
        yield group


def test_a_ca_rotation_fails_no_pod_creation_while_a_replica_is_killed(
    plane: ControlPlane, group: ReplicaGroup, measured: Measured
) -> None:
    installation = group.installation
    ensure_short_leaf(plane, group)
    # After a damaged Secret, the previous CA stays trusted for the life of a leaf.
    plane.wait(lambda: len(split(installation.secret_field("ca.crt"))) == 1, LEAF_LIFETIME + 10, "one CA")
    (old,) = split(installation.secret_field("ca.crt"))
    with History(plane, REGISTRATIONS) as published, PodStream.of_installation(installation) as stream:
        stream.wait_for_more(50)
        output = run_program(plane, "rotate-ca", "--yes")
        group.standby.crash_and_restart()
        plane.wait(lambda: not signed_by(installation.secret_field("tls.crt"), old), 30, "the new CA signs")
        plane.wait(group.called_serve_the_secret, 20, "the called replicas serve the leaf of the new CA")
        before = group.connections_opened()
        stream.wait_for_more(200)
        opened = group.connections_opened() - before
        group.standby.process.wait_until_healthy()
        plane.wait(group.all_serve_the_secret, 20, "all replicas serve the leaf of the new CA")
        plane.wait(
            lambda: old not in published.latest_ca_bundles(NAME).pop(), LEAF_LIFETIME + 10, "the old CA is dropped"
        )
        stream.wait_for_more(100)
    both, new = published.ca_bundles(NAME)[1:]
    assert published.ca_bundles(NAME) == [old, both, new]
    assert set(split(both)) == {old, new}
    assert output.splitlines()[-1].endswith("  drop: the last certificate of the old CA has expired")
    report(measured, "a CA rotation", stream, f"{opened} connections opened between its last two steps")
    assert stream.failed == []
    assert opened >= 1


def test_a_renewal_fails_no_pod_creation(plane: ControlPlane, group: ReplicaGroup, measured: Measured) -> None:
    installation = group.installation
    before, ca_bundle = installation.secret_field("tls.crt"), installation.secret_field("ca.crt")
    with PodStream.of_installation(installation) as stream:
        stream.wait_for_more(50)
        began = time.monotonic()
        output = run_program(plane, "renew", "--yes")
        leaf = installation.secret_field("tls.crt")
        plane.wait(group.all_serve_the_secret, 20, "all replicas serve the new leaf")
        took = time.monotonic() - began
        connections = group.connections_opened()
        stream.wait_for_more(200)
        opened = group.connections_opened() - connections
    assert leaf != before
    assert f"valid until {read(leaf).not_after:%Y-%m-%d %H:%M:%S} UTC" in output
    assert (installation.secret_field("ca.crt"), installation.ca_bundles()) == (ca_bundle, {ca_bundle})
    report(
        measured,
        "a renewal",
        stream,
        f"all replicas served the new leaf after {took:.1f} s, then {opened} connections opened",
    )
    assert stream.failed == []
    assert opened >= 1


def test_an_emptied_ca_bundle_fails_pod_creations_only_until_its_repair(
    plane: ControlPlane, group: ReplicaGroup, measured: Measured
) -> None:
    installation = group.installation
    ca_bundle = installation.secret_field("ca.crt")
    with PodStream.of_installation(installation) as stream:
        stream.wait_for_more(50)
        installation.publish(*[b""] * PORTS)
        took = seconds_until(plane, lambda: installation.ca_bundles() == {ca_bundle}, 20, "the repair of the caBundle")
        repaired = time.monotonic()

        def repair_seen() -> float:
            """Return the end of the first creation that began after the repair and succeeded; 0 if there is none."""
            since = (each for each in stream.creations if each.began > repaired)
            return min((each.ended for each in since if not each.problem), default=0.0)

        seen = plane.wait(repair_seen, 20, "the API server uses the repaired caBundle")
        stream.wait_for_more(150)
    late = [each for each in stream.creations if each.problem and each.began > seen]
    report(measured, "an emptied caBundle", stream, f"repaired after {took:.1f} s")
    assert late == []
    assert all("x509: certificate signed by unknown authority" in problem for problem in stream.failed)
    assert sum(each.metric("kubevirt_scheduler_certificate_repairs_total") for each in group.replicas) >= 1


def test_a_damaged_secret_is_refilled_and_fails_no_pod_creation(
    plane: ControlPlane, group: ReplicaGroup, measured: Measured
) -> None:
    installation = group.installation
    (old,) = installation.ca_bundles()
    with PodStream.of_installation(installation) as stream:
        stream.wait_for_more(50)
        plane.request("PATCH", installation.secret_path, {"data": {"ca.key": "eA=="}})
        plane.wait(lambda: installation.secret_field("ca.crt") != old, 20, "a new CA")
        took = seconds_until(plane, group.all_serve_the_secret, 20, "all replicas serve one leaf")
        before = group.connections_opened()
        stream.wait_for_more(200)
        opened = group.connections_opened() - before
    report(
        measured,
        "a damaged Secret",
        stream,
        f"all replicas served the new leaf {took:.1f} s after the new CA, then {opened} connections opened",
    )
    assert stream.failed == []
    assert opened >= 1
    both = installation.secret_field("ca.crt")
    assert (installation.ca_bundles(), len(split(both))) == ({both}, 2)
    assert old in both


def run_program(plane: ControlPlane, *arguments: str) -> str:
    """Run `kubevirt-scheduler certs` in its own process and return the standard output."""
    options = [
        f"--secret={NAMESPACE}/{NAME}-tls",
        f"--webhook-configuration={NAME}",
        f"--kubeconfig={plane.kubeconfig}",
    ]
    command = [str(PROGRAM), "certs", *arguments, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def stop(replicas: list[Replica]) -> None:
    for each in replicas:
        each.terminate()
    for each in replicas:
        each.stop()


def ensure_short_leaf(plane: ControlPlane, group: ReplicaGroup) -> None:
    """Make the replicas issue a new leaf if an operator's `certs renew` has issued one with a lifetime of 30 days."""
    leaf = read(group.installation.secret_field("tls.crt"))
    if leaf.not_after < datetime.now(UTC) + timedelta(seconds=LEAF_LIFETIME):
        return
    before = group.installation.secret_field("ca.crt")
    plane.request("PATCH", group.installation.secret_path, {"data": None})
    plane.wait(lambda: group.installation.secret_field("ca.crt") not in (b"", before), 20, "a new CA")
    plane.wait(group.all_serve_the_secret, 20, "all replicas serve one leaf")
    plane.wait(lambda: not group.installation.create_pod(), 20, "a successful webhook call")


def report(measured: Measured, what: str, stream: PodStream, more: str) -> None:
    """Report the figures of a stream."""
    failed, total = len(stream.failed), len(stream.creations)
    measured(f"{what}: {failed} of {total} creations failed, {stream.rate:.0f} a second; {more}")
