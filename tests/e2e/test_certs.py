"""Three replicas, started together on one empty Secret, look after the certificate while the API server calls them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner, Result

from certs.authority import read, split
from tests.support.controlplane.plane import ControlPlane
from tests.support.installation import SECRETS, Installation, Replica, account, seconds_until
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.object_history import History
from tests.support.pod_stream import Stream
from tests.support.webhook_process import NAMESPACE, PROGRAM, REGISTRATIONS
from webhook.cli import commands

pytestmark = pytest.mark.controlplane

NAME = "looked-after"
DOORS = 40
DAY = 86400
# Short enough that a rotation, which waits for the last leaf of the old CA, is over soon; long enough that the third of
# it that is left when it is renewed is twice the time between two passes.
LEAF = 24  # seconds
SPREAD = 2  # seconds
REPAIRED = 10  # seconds


class Trio:
    """The three, of which the last is not called, and what was written when they started."""

    def __init__(
        self, installation: Installation, replicas: list[Replica], secrets: History, published: History
    ) -> None:
        self.installation, self.replicas = installation, replicas
        self.secrets, self.published = secrets, published
        *self.called, self.stand_by = replicas

    def all_show_what_is_kept(self) -> bool:
        """Whether each serves the certificate in the Secret to a client that trusts what is published."""
        return self._show_what_is_kept(self.replicas)

    def called_show_what_is_kept(self) -> bool:
        return self._show_what_is_kept(self.called)

    def dialled(self) -> int:
        """How many connections the API server has opened; how many are open falls as well, 90 s after the last use."""
        return self.installation.plane.dialled(*(one.address for one in self.called))

    def _show_what_is_kept(self, replicas: list[Replica]) -> bool:
        (ca_bundle,), leaf = self.installation.published(), self.installation.field("tls.crt")
        return all(one.shown(ca_bundle, self.installation.host) == leaf for one in replicas)


@pytest.fixture(scope="module")
def trio(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Trio]:
    del longhorn  # its custom resource is there
    installation = Installation(plane, NAME, DOORS).make().open()
    options = [f"--tls-secret={NAMESPACE}/{NAME}-tls", f"--tls-name={installation.host}"]
    options += [f"--webhook-configuration={NAME}", f"--tls-leaf-days={LEAF / DAY}", f"--tls-spread={SPREAD}"]
    kubeconfig = account(plane, NAME, NAME)
    replicas = [Replica(plane, f"{NAME}-{number}", kubeconfig, *options) for number in range(3)]
    with ExitStack() as stack:
        stack.callback(installation.close)
        stack.callback(installation.unmake)
        stack.callback(stop, replicas)
        with History(plane, SECRETS) as secrets, History(plane, REGISTRATIONS) as published:
            for each in replicas:
                each.process.start()
            for each in replicas:
                each.process.wait_until_healthy(30)
            trio = Trio(installation, replicas, secrets, published)
            plane.wait(trio.all_show_what_is_kept, 20, "one certificate in all replicas")
        installation.call(*(each.address for each in trio.called))
        plane.wait(lambda: not installation.create(), 20, "a first call")
        yield trio


@pytest.fixture
def run(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("COLUMNS", "140")

    def run(*arguments: str, name: str = NAME) -> Result:
        where = [f"--secret={NAMESPACE}/{name}-tls", f"--webhook-configuration={name}"]
        result = CliRunner().invoke(commands, ["certs", *arguments, *where, f"--kubeconfig={plane.kubeconfig}"])
        assert "Traceback" not in result.output
        return result

    return run


def test_three_that_start_together_make_one_ca_and_all_serve_it(trio: Trio) -> None:
    # (Twenty times with keepers alone, in test_e2e_certs_together.py: a whole `serve` costs 0.7 s of CPU time.)
    bundle = trio.installation.field("ca.crt")
    assert len(split(bundle)) == 1
    assert trio.secrets.bundles(f"{NAME}-tls") == [b"", bundle]
    assert trio.published.ca_bundles(NAME) == [b"", bundle]
    assert trio.published.versions(NAME) == 1
    # The races: one for the Secret, one for the configuration, and one for each renewal since.
    renewals = sum(each.metric('kubevirt_scheduler_certificate_steps_total{step="renew"}') for each in trio.replicas)
    for each in trio.replicas:
        lost = each.metric('kubevirt_scheduler_certificate_failures_total{cause="conflict"}')
        assert lost == each.metric("kubevirt_scheduler_certificate_failures_total"), "nothing else has failed"
        assert lost <= 2 + renewals


def test_a_rotation_of_the_ca_fails_no_creation_though_a_replica_is_killed(
    plane: ControlPlane, trio: Trio, measured: Measured
) -> None:
    installation = trio.installation
    begin_with_a_short_leaf(plane, trio)
    (old,) = split(installation.field("ca.crt"))
    with History(plane, REGISTRATIONS) as published, Stream(installation) as stream:
        stream.go_on(50)
        told = program(plane, "rotate-ca", f"--spread={SPREAD}")
        trio.stand_by.crash()
        plane.wait(trio.called_show_what_is_kept, 20, "the certificate of the new CA in those that are called")
        before = trio.dialled()
        stream.go_on(200)
        dialled = trio.dialled() - before
        trio.stand_by.process.wait_until_healthy(30)
        plane.wait(trio.all_show_what_is_kept, 20, "the certificate of the new CA in all replicas")
        plane.wait(lambda: old not in published.latest(NAME).pop(), LEAF + 10, "the end of the old CA")
        stream.go_on(100)
    both, new = published.ca_bundles(NAME)[1:]
    assert published.ca_bundles(NAME) == [old, both, new]
    assert set(split(both)) == {old, new}
    assert told.splitlines()[-1].startswith("trusted until ")
    tell(measured, "a rotation of the CA", stream, f"{dialled} connections dialled between its last two steps")
    assert stream.failed == []
    assert dialled >= 1


def test_a_renewal_fails_no_creation(plane: ControlPlane, trio: Trio, measured: Measured) -> None:
    installation = trio.installation
    before, ca_bundle = installation.field("tls.crt"), installation.field("ca.crt")
    with Stream(installation) as stream:
        stream.go_on(50)
        asked = time.monotonic()
        told = program(plane, "renew")
        leaf = installation.field("tls.crt")
        plane.wait(trio.all_show_what_is_kept, 20, "the new certificate in all replicas")
        took = time.monotonic() - asked
        connections = trio.dialled()
        stream.go_on(200)
        dialled = trio.dialled() - connections
    assert leaf != before
    assert f"it ends on {read(leaf).not_after:%Y-%m-%d %H:%M:%S} UTC" in told
    assert (installation.field("ca.crt"), installation.published()) == (ca_bundle, {ca_bundle})
    tell(
        measured,
        "a renewal",
        stream,
        f"served by all {took:.1f} s after it was asked for, then {dialled} connections dialled",
    )
    assert stream.failed == []
    assert dialled >= 1


def test_a_ca_bundle_that_is_emptied_fails_creations_until_it_is_repaired_and_no_longer(
    plane: ControlPlane, trio: Trio, measured: Measured
) -> None:
    installation = trio.installation
    ca_bundle = installation.field("ca.crt")
    with Stream(installation) as stream:
        stream.go_on(50)
        installation.publish(*[b""] * DOORS)
        took = seconds_until(plane, lambda: installation.published() == {ca_bundle}, 20, "a repair")
        repaired = time.monotonic()

        def followed() -> float:
            """When the first creation ended that began after the repair and failed no more: by then it was known."""
            since = (each for each in stream.creations if each.began > repaired)
            return min((each.ended for each in since if not each.problem), default=0.0)

        known = plane.wait(followed, 20, "an API server that knows of the repair")
        stream.go_on(150)
    late = [each for each in stream.creations if each.problem and each.began > known]
    tell(measured, "an emptied caBundle", stream, f"repaired after {took:.1f} s")
    assert took < REPAIRED
    assert late == []
    assert all("x509: certificate signed by unknown authority" in problem for problem in stream.failed)
    assert sum(each.metric("kubevirt_scheduler_certificate_repairs_total") for each in trio.replicas) >= 1


def test_status_says_what_is_true(trio: Trio, run: Callable[..., Result]) -> None:
    leaf, ca = (read(trio.installation.field(name)) for name in ("tls.crt", "ca.crt"))
    told = json.loads(run("status", "-o", "json").stdout)
    assert told["problem"] == ""
    assert [each["fingerprint"] for each in told["certificates"][:2]] == [leaf.fingerprint, ca.fingerprint]
    assert {(each["caBundle"], each["trusted"]) for each in told["webhooks"]} == {("as in the Secret", True)}
    assert len(told["webhooks"]) == DOORS
    result = run("status")
    assert result.exit_code == 0
    for text in (trio.installation.host, f"{leaf.not_after:%Y-%m-%d %H:%M:%S} UTC", f"Next: {told['next']['step']}"):
        assert text in result.stdout


def test_a_dry_run_tells_the_steps_and_writes_nothing(plane: ControlPlane, trio: Trio, run: Callable[..., Result]):
    paths = trio.installation.secret, trio.installation.configuration
    before = [plane.request("GET", path)["metadata"]["resourceVersion"] for path in paths]
    result = run("rotate-ca", "--dry-run")
    assert result.exit_code == 0, result.output
    words = [line.split("  ")[1].split(":")[0] for line in result.stdout.splitlines()]
    assert [word for word in words if word != "renew"] == ["introduce", "published", "sign", "drop"]
    assert [plane.request("GET", path)["metadata"]["resourceVersion"] for path in paths] == before


@pytest.mark.parametrize("command", ["status", "renew", "rotate-ca"])
def test_a_secret_that_is_not_there_is_said_in_one_line(plane: ControlPlane, run: Callable[..., Result], command: str):
    del plane
    result = run(command, name="nobody")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"there is no Secret {NAMESPACE}/nobody-tls; helm upgrade makes it" in result.stderr


def test_a_damaged_secret_is_filled_anew_and_fails_no_creation(
    plane: ControlPlane, trio: Trio, measured: Measured
) -> None:
    installation = trio.installation
    (old,) = installation.published()
    with Stream(installation) as stream:
        stream.go_on(50)
        plane.request("PATCH", installation.secret, {"data": {"ca.key": "eA=="}})
        plane.wait(lambda: installation.field("ca.crt") != old, 20, "a new CA")
        took = seconds_until(plane, trio.all_show_what_is_kept, 20, "one certificate in all replicas")
        before = trio.dialled()
        stream.go_on(200)
        dialled = trio.dialled() - before
    tell(measured, "a fresh start", stream, f"served by all {took:.1f} s after it, then {dialled} connections dialled")
    assert stream.failed == []
    assert dialled >= 1
    both = installation.field("ca.crt")
    assert (installation.published(), len(split(both))) == ({both}, 2)
    assert old in both


def program(plane: ControlPlane, *arguments: str) -> str:
    """Run `kubevirt-scheduler certs` and return what it printed."""
    where = [f"--secret={NAMESPACE}/{NAME}-tls", f"--webhook-configuration={NAME}", f"--kubeconfig={plane.kubeconfig}"]
    command = [str(PROGRAM), "certs", *arguments, *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def stop(replicas: list[Replica]) -> None:
    for each in replicas:
        each.ask_to_end()
    for each in replicas:
        each.stop()


def begin_with_a_short_leaf(plane: ControlPlane, trio: Trio) -> None:
    """Have the replicas fill the Secret anew, where a person's `certs renew` has left 30 days in it."""
    if read(trio.installation.field("tls.crt")).not_after < datetime.now(UTC) + timedelta(seconds=LEAF):
        return
    before = trio.installation.field("ca.crt")
    plane.request("PATCH", trio.installation.secret, {"data": None})
    plane.wait(lambda: trio.installation.field("ca.crt") not in (b"", before), 20, "a new CA")
    plane.wait(trio.all_show_what_is_kept, 20, "one certificate in all replicas")
    plane.wait(lambda: not trio.installation.create(), 20, "a call")


def tell(measured: Measured, what: str, stream: Stream, more: str) -> None:
    failed, all_of_them = len(stream.failed), len(stream.creations)
    measured(f"{what}: {failed} of {all_of_them} creations failed, {stream.rate:.0f} a second; {more}")
    measured(f"of the processors' time {stream.idle:.0%} was idle beside it")
    assert not stream.is_held_up, "creations wait for something that is not a processor"
