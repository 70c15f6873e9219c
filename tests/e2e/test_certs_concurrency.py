"""Certificate controllers in processes of their own: they start together on an empty Secret, or die by `kill -9`.

tests/certs/test_controller.py ends a controller before and after each request of its life.
"""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs import secret as bundles
from certs.authority import issue_ca, issue_leaf, signed_by, split
from certs.secret import Bundle, RetiringCA
from tests.e2e.certificate_processes import ControllerProcesses
from tests.support.controlplane.plane import ControlPlane
from tests.support.installation import SECRETS, Installation, create_kubeconfig
from tests.support.measured import Measured
from tests.support.object_history import History
from tests.support.webhook_process import NAMESPACE, REGISTRATIONS

pytestmark = pytest.mark.controlplane

RUNS, CONTROLLERS = 20, 3
PASSES = 6  # two may lose their write to another controller, one continues, and the others must find nothing to do
KINDS = {"secrets", "mutatingwebhookconfigurations"}


def test_controllers_that_start_together_create_one_ca_and_lose_at_most_one_write_per_race(
    plane: ControlPlane, tmp_path: Path, measured: Measured
) -> None:
    # Sixty whole `serve` would take a minute of CPU time, and start further apart.
    installations = [Installation(plane, f"together-{number}").create_certificate_objects() for number in range(RUNS)]
    kubeconfig = create_kubeconfig(plane, "together", *(each.name for each in installations))
    conflicts = 0
    try:
        with (
            ControllerProcesses(tmp_path / "log") as controllers,
            History(plane, SECRETS) as secrets,
            History(plane, REGISTRATIONS) as published,
        ):
            for each in installations:
                conflicts += start_together(controllers, each, kubeconfig, tmp_path)
        for each in installations:
            bundle = each.secret_field("ca.crt")
            assert len(split(bundle)) == 1
            assert secrets.secret_ca_bundles(f"{each.name}-tls") == [b"", bundle]
            assert published.ca_bundles(each.name) == [b"", bundle]
            assert (secrets.update_count(f"{each.name}-tls"), published.update_count(each.name)) == (1, 1)
    finally:
        for each in installations:
            each.delete_certificate_objects()
    measured(f"{RUNS} times {CONTROLLERS} controllers: {conflicts} writes lost to a faster controller")
    assert conflicts, "no controller lost a write, so there was no race"


def start_together(controllers: ControllerProcesses, installation: Installation, kubeconfig: Path, parent: Path) -> int:
    """Run controllers on an empty Secret, check the leaf that they serve, and return the number of conflicts."""
    folders = [parent / f"{installation.name}-{number}" for number in range(CONTROLLERS)]
    for folder in folders:
        folder.mkdir()
    task = {"kubeconfig": str(kubeconfig), "name": installation.name, "names": [installation.host], "passes": PASSES}
    results = controllers.run(*(task | {"folder": str(folder)} for folder in folders))
    assert [(each["status"], each["problem"]) for each in results] == [(0, "")] * CONTROLLERS
    assert {(folder / "tls.crt").read_bytes() for folder in folders} == {installation.secret_field("tls.crt")}
    assert sum(each["steps"].get("start", 0) for each in results) == 1
    assert all(set(each["lost"]) <= KINDS and max(each["lost"].values(), default=0) <= 1 for each in results)
    return sum(sum(each["lost"].values()) for each in results)


def old_ca(now: datetime, names: list[str]) -> Bundle:
    """Return a bundle whose CA has to be replaced."""
    authority = issue_ca(now - timedelta(days=300), names)
    return Bundle(authority, issue_leaf(authority, names, now - timedelta(days=1)))


def retired_ca(now: datetime, names: list[str]) -> Bundle:
    """Return a bundle whose former CA has to be dropped."""
    authority, former = (issue_ca(now - timedelta(days=30), names) for _ in range(2))
    retiring = RetiringCA(former.certificate, now - timedelta(seconds=1))
    return Bundle(authority, issue_leaf(authority, names, now - timedelta(days=1)), retiring=(retiring,))


# The content of the Secret, the number of the write at which the controller dies, and whether it dies after that write.
KILLS = {
    "the first CA is stored but not published": (None, 1, True),
    "the next CA is stored but not published": (old_ca, 2, False),
    "the caBundle lacks a CA that the Secret has": (retired_ca, 1, True),
}


@pytest.fixture(scope="module")
def killed_kubeconfig(plane: ControlPlane) -> Path:
    return create_kubeconfig(plane, "killed", "killed")


@pytest.mark.parametrize(("content", "write", "done"), KILLS.values(), ids=KILLS)
def test_another_controller_completes_the_step_of_a_killed_one(
    plane: ControlPlane, killed_kubeconfig: Path, tmp_path: Path, *, content, write: int, done: bool
) -> None:
    installation = Installation(plane, "killed").create_certificate_objects()
    try:
        initial = content and content(datetime.now(UTC), [installation.host])
        if initial:
            metadata = {"name": f"{installation.name}-tls", "namespace": NAMESPACE}
            plane.request("PUT", installation.secret_path, bundles.written(initial, {"metadata": metadata}))
            installation.publish(initial.ca_bundle())
        task = {"kubeconfig": str(killed_kubeconfig), "name": installation.name}
        task |= {"names": [installation.host], "passes": PASSES}
        with ControllerProcesses(tmp_path / "log") as controllers:
            for each, expected in ({"die": (write, done)}, -signal.SIGKILL), ({}, 0):
                folder = tmp_path / str(expected)
                folder.mkdir()
                (result,) = controllers.run(task | each | {"folder": str(folder)})
                assert result["status"] == expected, result
        found = bundles.read(plane.request("GET", installation.secret_path))
        assert isinstance(found, Bundle)
        assert (folder / "tls.crt").read_bytes() == found.leaf.certificate
        assert signed_by(found.leaf.certificate, found.authority.certificate)
        assert installation.ca_bundles() == {found.ca_bundle()}
        assert not found.next_ca
        former = [initial.authority.certificate] if content is old_ca else []
        assert set(split(found.ca_bundle())) == {found.authority.certificate, *former}
    finally:
        installation.delete_certificate_objects()
