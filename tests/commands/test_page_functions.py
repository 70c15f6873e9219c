"""The page's functions that calculate, without a browser: `deno` of the development tools runs them."""

import json
import subprocess
import sys
from pathlib import Path

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
  parsed('{"name": "a\\\\u0000b", "number": 5}'),
]));
"""


def test_the_functions_of_the_page_that_calculate() -> None:
    script = STUB + (SCRIPTS / "data.js").read_text() + CALLS
    deno = [str(Path(sys.prefix) / "bin" / "deno"), "run", "--quiet", "--no-lock", "--ext=js", "-"]
    ran = subprocess.run(deno, input=script, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [
        ".rack.example",
        ".example",
        "",
        "",
        "vm\ufffd1\ufffd",
        ["Apart", "NotConcerned", "apart", "New"],
        ["1.2", "1 VM", "1,200 VMs"],
        [["Apart", 2], ["NotConcerned", 1]],
        {"name": "a\ufffdb", "number": 5},
    ]


def test_no_line_of_a_script_is_longer_than_120_characters() -> None:
    lines = [(file.name, line) for file in SCRIPTS.glob("*.js") for line in file.read_text().splitlines()]
    assert len(lines) > 500
    assert [(name, line) for name, line in lines if len(line) > 120] == []
