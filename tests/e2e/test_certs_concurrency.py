"""Certificate controllers that start together on an empty Secret agree on one CA: real processes, a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from certs.authority import split
from tests.support.certificate_processes import ControllerProcesses
from tests.support.controlplane.plane import ControlPlane
from tests.support.installation import SECRETS, Installation, create_kubeconfig
from tests.support.measured import Measured
from tests.support.object_history import History
from tests.support.webhook_process import REGISTRATIONS

pytestmark = pytest.mark.controlplane

RUNS, CONTROLLERS = 20, 3
PASSES = 6  # two may lose their write to another controller, one continues, and the others must find nothing to do
KINDS = {"secrets", "mutatingwebhookconfigurations"}


def test_controllers_that_start_together_create_one_ca_and_lose_at_most_one_write_per_race(
    plane: ControlPlane, tmp_path: Path, measured: Measured
) -> None:
    # In test_certs.py, three whole `serve` start together. Sixty of them would take a minute of CPU time, and start
    # further apart. So this test runs only their certificate controllers.
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
