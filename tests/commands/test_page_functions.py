"""The page's functions that calculate, without a browser: `deno` of the development tools runs them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

SCRIPTS = ROOT / "webhook" / "commands" / "report"
# A page with an empty report.
STUB = 'globalThis.document = { getElementById: () => ({ textContent: "{}" }) };\n'
CALLS = """
console.log(JSON.stringify([
  sharedDomain(["a.rack.example", "b.rack.example"]),
  sharedDomain(["a.rack.example", "b.other.example"]),
  sharedDomain(["a", "b.example"]),
  sharedDomain(["10.0.0.1", "10.1.0.1"]),
  printable("vm\\u202e1\\n"),
  [known("Apart"), known("toString"), words("Apart"), words("New")],
  [megabytes(1234567), plural(1, "VM"), plural(1200, "VM")],
  counted([{ state: "Apart" }, { state: "Apart" }, { state: "constructor" }]).filter(([, number]) => number),
  [{}, { optedInBy: "namespace" }, { optedInBy: "annotation", optInPending: true }, { optedOut: true }].map(optIn),
  parsed('{"name": "a\\\\u0000b", "number": 5}'),
]));
"""


def run(script: str, *names: str) -> Any:
    """Run a script after the page's scripts, and return what it prints."""
    script = STUB + "".join((SCRIPTS / name).read_text() for name in names) + script
    deno = [str(Path(sys.prefix) / "bin" / "deno"), "run", "--quiet", "--no-lock", "--ext=js", "-"]
    ran = subprocess.run(deno, input=script, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_the_functions_of_the_page_that_calculate() -> None:
    assert run(CALLS, "data.js") == [
        ".rack.example",
        ".example",
        "",
        "",
        "vm\ufffd1\ufffd",
        ["Apart", "NotConcerned", "apart", "New"],
        ["1.2", "1 VM", "1,200 VMs"],
        [["Apart", 2], ["NotConcerned", 1]],
        ["no", "by namespace", "from next start", "opted out"],
        {"name": "a\ufffdb", "number": 5},
    ]


HEADLINES = {
    "242 of 500 VMs are apart. `recolocate` brings 160 together.": {
        "vms": 500, "apart": 242, "togetherAfterRecolocate": 160, "togetherAfterRestart": 242
    },
    "1 of 1 VM is apart. A restart brings 1 together.": {"vms": 1, "apart": 1, "togetherAfterRestart": 1},
    "4 of 11 VMs are apart. Opt-in and a restart bring 3 together.": {
        "vms": 11, "apart": 4, "togetherAfterRestart": 3, "togetherAfterRestartNotOptedIn": 1
    },
    "2 of 3,000 VMs are apart. Neither `recolocate` nor a restart brings one together.": {"vms": 3000, "apart": 2},
    "None of 2 VMs is apart.": {"vms": 2},
    "No VMs.": {},
}  # fmt: skip


def test_the_headline_is_one_number_and_the_action_that_costs_least() -> None:
    calls = f"console.log(JSON.stringify({json.dumps(list(HEADLINES.values()))}.map(headline)))"
    assert run(calls, "data.js") == list(HEADLINES)


def test_the_worst_vm_comes_first_then_the_most_traffic_then_the_one_that_a_command_helps() -> None:
    vms = [
        {"name": "together", "state": "Together"},
        {"name": "apart-2", "state": "Apart", "traffic": {"bytes": 5}},
        {"name": "apart-10", "state": "Apart", "traffic": {"bytes": 5}},
        {"name": "helped", "state": "Apart", "traffic": {"bytes": 5}, "nextStep": "recolocate"},
        {"name": "busy", "state": "Apart", "traffic": {"bytes": 70}},
        {"name": "unknown", "state": "constructor"},
        {"name": "stopped", "state": "Stopped"},
        {"name": "unserved", "state": "Unserved"},
        {"name": "waiting", "state": "Waiting"},
        {"name": "hangs", "state": "Together", "outage": {"pod": "share-manager-1"}},
    ]
    calls = f"""
const fleet = {json.dumps(vms)}.map((vm) => ({{ namespace: "shop", ...vm }}));
const names = (...of) => ordered(fleet, ...of).map((vm) => vm.name);
console.log(JSON.stringify([names("State", null, true), names("VM", (vm) => vm.name, false)]));
"""
    worst, by_name = run(calls, "data.js")
    apart = ["apart-2", "apart-10"]
    rest = ["waiting", "unserved", "stopped", "together", "unknown"]
    assert worst == ["hangs", "busy", "helped", *apart, *rest]
    assert by_name == ["waiting", "unserved", "unknown", "together", "stopped", "helped", "hangs", "busy", *apart[::-1]]


def test_each_word_of_a_search_is_found_in_the_vm_its_claim_or_a_node() -> None:
    calls = """
const vm = { name: "VM-1", claim: "data-7", node: "node-a", storageNode: "node-b" };
const searches = ["", "vm-1", "data-7 node-b", "node-a vm", "data node-c", "shop"];
console.log(JSON.stringify(searches.map((search) => isFound(vm, search))));
"""
    assert run(calls, "data.js") == [True, True, True, True, False, False]


def test_the_line_of_the_last_day_begins_at_zero() -> None:
    calls = """
console.log(JSON.stringify([trendPoints([[0, 0], [900, 5], [1800, 10]]), trendPoints([[7, 0], [7, 0]])]));
"""
    rising, flat = run(calls, "data.js", "header.js")
    assert rising == [[3, 33], [70, 18], [137, 3]]
    assert flat == [[3, 33], [3, 33]]


def test_a_drain_that_is_not_safe_says_why_in_one_word() -> None:
    calls = """
const vm = (...effects) => ({ effects });
const lasting = { kind: "Volume", ends: false };
const checked = [
  { vms: [vm("Restarts"), vm("IOPauses", "IOHangs")], obstacles: [{ kind: "Pod", ends: true }] },
  { vms: [vm("Restarts"), vm("Stops")], obstacles: [] },
  { vms: [vm("Restarts")], obstacles: [lasting] },
  { vms: [vm("Blocks")], obstacles: [] },
  { vms: [{}], obstacles: [] },
];
console.log(JSON.stringify(checked.map(unsafe)));
"""
    words = ["hangs", "stops", "volume", "blocked"]
    assert run(calls, "data.js", "header.js", "nodes.js") == [*(f"not safe: {word}" for word in words), "not safe"]


def test_no_line_of_a_script_is_longer_than_120_characters() -> None:
    lines = [(file.name, line) for file in SCRIPTS.glob("*.js") for line in file.read_text().splitlines()]
    assert len(lines) > 500
    assert [(name, line) for name, line in lines if len(line) > 120] == []
