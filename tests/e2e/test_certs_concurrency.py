"""Replicas that start together on one empty Secret agree: real processes, a real API server, twenty times."""

from __future__ import annotations

from pathlib import Path

import pytest

from certs.authority import split
from tests.support.certificate_processes import Keepers
from tests.support.controlplane.plane import ControlPlane
from tests.support.installation import SECRETS, Installation, account
from tests.support.measured import Measured
from tests.support.object_history import History
from tests.support.webhook_process import REGISTRATIONS

pytestmark = pytest.mark.controlplane

RUNS, TOGETHER = 20, 3
PASSES = 6  # two that may be lost to others, one that goes on from there, and some that must find nothing to do
KINDS = {"secrets", "mutatingwebhookconfigurations"}


def test_twenty_times_three_processes_on_an_empty_secret_make_one_ca_and_lose_one_write_a_race(
    plane: ControlPlane, tmp_path: Path, measured: Measured
) -> None:
    # Three whole `serve` start together in test_e2e_certs.py. Here it is what they keep the certificate with, alone:
    # sixty of the others would take a minute of CPU time, and start further apart.
    installations = [Installation(plane, f"together-{number}").make() for number in range(RUNS)]
    kubeconfig = account(plane, "together", *(each.name for each in installations))
    lost = 0
    try:
        with (
            Keepers(tmp_path / "log") as keepers,
            History(plane, SECRETS) as secrets,
            History(plane, REGISTRATIONS) as published,
        ):
            for each in installations:
                lost += start_together(keepers, each, kubeconfig, tmp_path)
        for each in installations:
            bundle = each.field("ca.crt")
            assert len(split(bundle)) == 1
            assert secrets.bundles(f"{each.name}-tls") == [b"", bundle]
            assert published.ca_bundles(each.name) == [b"", bundle]
            assert (secrets.versions(f"{each.name}-tls"), published.versions(each.name)) == (1, 1)
    finally:
        for each in installations:
            each.unmake()
    measured(f"{RUNS} times {TOGETHER} keepers: {lost} writes lost to somebody faster")
    assert lost, "else there was no race"


def start_together(keepers: Keepers, installation: Installation, kubeconfig: Path, place: Path) -> int:
    """Start some on an empty Secret, look what they serve, and return how many writes were lost."""
    folders = [place / f"{installation.name}-{number}" for number in range(TOGETHER)]
    for folder in folders:
        folder.mkdir()
    order = {"kubeconfig": str(kubeconfig), "name": installation.name, "names": [installation.host], "passes": PASSES}
    ended = keepers.run(*(order | {"folder": str(folder)} for folder in folders))
    assert [(each["status"], each["problem"]) for each in ended] == [(0, "")] * TOGETHER
    assert {(folder / "tls.crt").read_bytes() for folder in folders} == {installation.field("tls.crt")}
    assert sum(each["steps"].get("start", 0) for each in ended) == 1
    assert all(set(each["lost"]) <= KINDS and max(each["lost"].values(), default=0) <= 1 for each in ended)
    return sum(sum(each["lost"].values()) for each in ended)
