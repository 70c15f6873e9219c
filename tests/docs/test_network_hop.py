"""The page about the network hop: its calculated table is right, and the API server accepts its manifests."""

from __future__ import annotations

import re

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.paths import DOCS, EXAMPLES


def test_the_table_of_operations_left_is_calculated_correctly() -> None:
    _, _, rest = (DOCS / "explanation/network-hop.md").read_text().partition("\n| latency on the same node |")
    table = [
        [cell.split()[0] for cell in row.strip("|").split("|")] for row in rest.partition("\n\n")[0].splitlines()[2:]
    ]
    headings = re.findall(r"([\d.]+) ms", rest.splitlines()[0])
    assert [float(each) for each in headings] == [0.1, 0.25, 0.5, 1]
    for latency, *shares in table:
        expected = [f"{float(latency) / (float(latency) + float(each)):.0%}" for each in headings]
        assert [f"{share}%" for share in shares] == expected


@pytest.mark.controlplane
def test_the_api_server_accepts_each_manifest_without_warnings_about_fields(plane: ControlPlane) -> None:
    files = sorted(map(str, EXAMPLES.glob("network-hop/*.yaml")))
    assert len(files) == 3
    for file in files:
        plane.kubectl("create", "--dry-run=server", "--validate=strict", "-n", "default", "-f", file)
