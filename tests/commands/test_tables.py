"""A table fits the width of the terminal, and no word is broken."""

import pytest

from webhook.commands.tables import render_table

HEADS = ("VM", "NODE", "STORAGE", "WHY")
DOMAIN = ".dc1.example.com"
WHY = "the guard refuses node-b"


def rows(*nodes: str) -> list[tuple[str, ...]]:
    return [(f"vm{number}", node, "-", WHY) for number, node in enumerate(nodes)]


@pytest.mark.parametrize(
    ("nodes", "columns", "lines"),
    [
        pytest.param(
            [f"node-a{DOMAIN} (cordoned)", f"node-b{DOMAIN}"], 70,
            [
                "VM    NODE                STORAGE   WHY",
                f"vm0   node-a (cordoned)   -         {WHY}",
                f"vm1   node-b              -         {WHY}",
                f"The table omits the domain of the nodes: {DOMAIN}",
            ],
            id="the shared domain is omitted",
        ),
        pytest.param(
            [f"node-a{DOMAIN}"], 80,
            [f"VM    NODE{' ' * 18}   STORAGE   WHY", f"vm0   node-a{DOMAIN}   -         {WHY}"],
            id="a table that fits keeps it",
        ),
        pytest.param(
            ["10.0.0.1", "10.1.0.1"], 46,
            ["VM  NODE     STORAGE WHY", f"vm0 10.0.0.1 -       {WHY}", f"vm1 10.1.0.1 -       {WHY}"],
            id="an address has no domain, and the gaps shrink",
        ),
        pytest.param(
            ["a.b.example.com", "c.example.com"], 38,
            [
                "VM    NODE   STORAGE",
                "   WHY",
                "vm0   a.b    -",
                f"   {WHY}",
                "vm1   c      -",
                f"   {WHY}",
                "The table omits the domain of the nodes: .example.com",
            ],
            id="the last cells stand below",
        ),
    ],
)  # fmt: skip
def test_a_table_fits_the_width(nodes: list[str], columns: int, lines: list[str]) -> None:
    assert render_table(HEADS, rows(*nodes), columns=columns).splitlines() == lines


def test_a_sentence_wraps_between_words_and_programs_get_whole_names() -> None:
    command = "kubevirt-scheduler opt-in a-name-that-is-longer-than-a-line-of-the-table -n default --yes"
    table = render_table(HEADS, [("vm0", f"node-a{DOMAIN}", "-", command)], columns=60)
    assert "a-name-that-is-longer-than-a-line-of-the-table" in table
    alone = render_table(HEADS, rows(f"node-a{DOMAIN}"), columns=30, headers=False)
    assert f"node-a{DOMAIN}" in alone
