"""Quantities are parsed as in the API server and formatted for people."""

from typing import Any

import pytest

from webhook.placement.objects.fields import Malformed
from webhook.placement.objects.resources import amounts, format_quantity


@pytest.mark.parametrize(
    ("quantity", "milli", "units"),
    [
        ("+1", 1000, 1),
        ("1.", 1000, 1),
        (".5", 500, 1),
        ("1500m", 1500, 2),
        ("0.0001", 1, 1),
        ("999999n", 1, 1),
        ("1000001n", 2, 1),
        ("0.1n", 1, 1),
        ("1k", 1_000_000, 1000),
        ("1G", 10**12, 10**9),
        ("1E", 10**21, 10**18),
        ("1Ki", 1024_000, 1024),
        ("1.5Gi", 1500 * 2**30, 3 * 2**29),
        ("1Ei", 1000 * 2**60, 2**60),
        ("2e3", 2_000_000, 2000),
        ("2e-3", 2, 1),
        ("25e+1", 250_000, 250),
        ("-1.5", -1500, -1),
        (2, 2000, 2),
        (0.1, 100, 1),
        (1e18, 10**21, 10**18),
        ("1e999", 1000 * (2**63 - 1), 2**63 - 1),
        ("-1e999", -1000 * (2**63 - 1), -(2**63) + 1),
    ],
)
def test_a_quantity_is_parsed_to_milli_for_cpu_and_to_whole_units_otherwise(
    quantity: Any, milli: int, units: int
) -> None:
    assert amounts({"cpu": quantity, "memory": quantity}) == {"cpu": milli, "memory": units}


@pytest.mark.parametrize(
    "quantity", ["x", "1x", "1 ", " 1", "1e", "1e1.5", "--1", ".", "1.5.1", "1K", "1mi", "1_0", "inf", "٣"]
)
def test_an_invalid_quantity_raises_malformed(quantity: str) -> None:
    with pytest.raises(Malformed, match="not a number with a unit"):
        amounts({"cpu": quantity})


@pytest.mark.parametrize(
    ("resource", "quantity", "formatted"),
    [
        ("cpu", 1000, "1"),
        ("cpu", 1001, "1001m"),
        ("devices.kubevirt.io/kvm", 10240, "10240"),
        ("memory", 10239, "10239"),
        ("memory", 10240, "10Ki"),
        ("memory", 2**30, "1024Mi"),
        ("ephemeral-storage", 50 * 10**6, "47.7Mi"),
    ],
)
def test_an_amount_is_formatted_for_people(resource: str, quantity: int, formatted: str) -> None:
    assert format_quantity(resource, quantity) == formatted
