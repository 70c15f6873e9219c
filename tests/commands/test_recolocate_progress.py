"""A run prints one line per change, notes once, and what it leaves running."""

import json

import pytest

from webhook.commands.recolocate.run_output import Reporter, reporter
from webhook.fleet.move import Move
from webhook.fleet.run import Relocation, Run, Stage

VM1 = Relocation(Move("shop", "vm1", "node-b", "node-a", "node-a"), migration="m1", stage=Stage.MIGRATING)
DONE = Relocation(VM1.move, migration="m1", stage=Stage.MOVED)
SKIPPED = Relocation(VM1.move, stage=Stage.SKIPPED, detail="NodeFull: node-a is full")


def test_a_person_reads_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with reporter(2, as_json=False) as report:
        report.changed(VM1, 10.0)
        report.changed(DONE, 41.6)
        report.changed(SKIPPED, 42.0)
        for _ in range(2):
            report.note("waiting")
        report.end(Run((VM1, DONE), stopped="interrupted"))
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "shop/vm1  node-b -> node-a  migrating",
        "shop/vm1  node-b -> node-a  moved after 32 s",
        "shop/vm1  node-b -> node-a  skipped after 32 s: NodeFull: node-a is full",
        "2 VMs: 1 migrating, 1 moved",
    ]
    assert output.err.splitlines() == [
        "waiting",
        "Stopped: interrupted",
        "Still running: migration m1 in namespace shop",
    ]


def test_a_program_reads_json_and_the_bar_shows_how_many_vms_have_ended(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[tuple[str, int, int | None]] = []
    report = Reporter(3, lambda words, done, total: shown.append((words, done, total)), as_json=True)
    report.changed(VM1, 10.0)
    report.changed(DONE, 41.6)
    report.end(Run((VM1,)))
    assert shown == [("migrating shop/vm1", 0, 3), ("moved shop/vm1", 1, 3)]
    first, second, last = map(json.loads, capsys.readouterr().out.splitlines())
    names = {"namespace": "shop", "name": "vm1", "source": "node-b", "target": "node-a"}
    rest = {"migration": "m1", "canary": False, "detail": None}
    assert first == names | rest | {"stage": "Migrating", "seconds": 0.0}
    assert second == names | rest | {"stage": "Moved", "seconds": 31.6}
    assert (last["left"], last["stopped"]) == (["shop/m1"], None)
