"""Plant each bug of bugs.yaml in a copy of the sources, and report which of them the tests catch: make planted-bugs.

A bug names no source file: its old text occurs once in the product, wherever that code is now. A bug whose text is gone
is reported and counts as neither caught nor missed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

from tests.support.paths import ROOT

BUGS = Path(__file__).with_name("bugs.yaml")
PRODUCT = ("webhook/**/*.py", "certs/*.py", "charts/**/*.tpl", "charts/**/*.yaml")
SECONDS = 900  # for the tests of one bug: a bug may make them hang


@dataclass(frozen=True, slots=True)
class Bug:
    old: str
    new: str
    tests: Sequence[str]  # in this order, until one fails
    missed: bool = False  # no test has caught it so far


@dataclass(frozen=True, slots=True)
class Outcome:
    bug: Bug
    verdict: str  # caught, missed, or gone
    room: str = "gone"
    detail: str = ""


def read_bugs(file: Path = BUGS) -> list[Bug]:
    """Read the bugs, which the file groups by the folder whose tests must catch them."""
    folders = yaml.safe_load(file.read_text(encoding="utf-8"))
    return [
        Bug(bug["old"], bug["new"], [*filter(None, [bug.get("first")]), tests], bug.get("missed", False))
        for tests, bugs in folders.items()
        for bug in bugs
    ]


def find(bug: Bug, root: Path) -> Path | None:
    """Return the only source file that contains the old text of a bug."""
    files = [path for pattern in PRODUCT for path in sorted(root.glob(pattern))]
    found = [path for path in files for _ in range(path.read_text(encoding="utf-8").count(bug.old))]
    return found[0] if len(found) == 1 else None


@contextmanager
def planted(file: Path, bug: Bug) -> Iterator[None]:
    """Replace the text of the bug in a file for a while."""
    text = file.read_text(encoding="utf-8")
    for content in (text.replace(bug.old, bug.new), text):
        file.write_text(content, encoding="utf-8")
        # Python takes a file of the same size and second for the one that it has compiled.
        os.utime(file, (time.time(), next(_seconds)))
        if content != text:
            yield


def _count_up() -> Iterator[int]:
    second = int(time.time())
    while True:
        yield (second := second + 1)


_seconds = _count_up()


def run_tests(root: Path, tests: str) -> tuple[bool, str]:
    """Run tests until the first failure. Return whether they pass, and the test that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "--tb=no", "-m", "not needs and not image", tests]
    command += [f"--override-ini=cache_dir={root}/.cache/pytest"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    try:
        run = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"{tests}: more than {SECONDS} s"
    failed = re.search(r"^(?:FAILED|ERROR) (.*)", run.stdout, re.MULTILINE)
    return run.returncode == 0, failed[1].partition(" - ")[0] if failed else run.stdout[-300:]


def try_bug(bug: Bug, root: Path, *, known_misses: bool) -> Outcome:
    """Plant a bug in a copy of the sources, and run its tests there."""
    file = find(bug, root)
    if file is None:
        return Outcome(bug, "gone")
    room = str(file.parent.relative_to(root))
    if bug.missed and not known_misses:
        return Outcome(bug, "missed", room, "known, not tried")
    with planted(file, bug):
        for tests in bug.tests:
            if (root / tests.partition("::")[0]).exists():
                passed, detail = run_tests(root, tests)
                if not passed:
                    return Outcome(bug, "caught", room, detail)
    return Outcome(bug, "missed", room)


def copy_sources(target: Path) -> Path:
    """Copy the files that git knows, as they are in the working tree."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def main() -> int:
    """Try the bugs, and print a line for each and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="a pattern; try only bugs whose text or tests contain it")
    parser.add_argument("--known-misses", action="store_true", help="also try the bugs that no test has caught so far")
    arguments = parser.parse_args()
    bugs = [bug for bug in read_bugs() if re.search(arguments.only, f"{bug.old} {bug.tests}")]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.workers) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(arguments.workers):
            copies.put(copy_sources(Path(folder) / str(number)))

        def attempt(bug: Bug) -> Outcome:
            copy = copies.get()
            try:
                return try_bug(bug, copy, known_misses=arguments.known_misses)
            finally:
                copies.put(copy)

        outcomes = []
        for outcome in pool.map(attempt, bugs):
            print(f"{outcome.verdict:6} {outcome.room:24} {outcome.bug.old!r:.70} {outcome.detail}", flush=True)
            outcomes.append(outcome)
    return report(outcomes)


def report(outcomes: Sequence[Outcome]) -> int:
    """Print how many bugs of each room were caught. Return whether one was missed that was caught before."""
    rooms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        rooms[outcome.room][outcome.verdict] += 1
        rooms["all"][outcome.verdict] += 1
    for room, counts in sorted(rooms.items()):
        print(f"{room:28} {counts['caught']:4} caught {counts['missed']:4} missed {counts['gone']:4} gone")
    return any(outcome.verdict == "missed" and not outcome.bug.missed for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
