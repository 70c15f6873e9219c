"""Change one operator, comparison, condition or constant of a file at a time, and list those that no test catches.

The tests of the file's room that need no control plane run on a copy of the sources. A change survives
if all tests pass: then a test is missing, or the change makes no difference. Run as `make mutants`.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

PAIRS = "Lt LtE, Gt GtE, Eq NotEq, In NotIn, Is IsNot, And Or, Add Sub, Mult FloorDiv, BitOr BitAnd"
SWAPS = {getattr(ast, a): getattr(ast, b) for a, b in map(str.split, PAIRS.split(","))}
SWAPS |= {new: old for old, new in SWAPS.items()} | {ast.Div: ast.Mult}
WITHOUT_BEHAVIOR = "annotation", "returns", "decorator_list"
OPTIONS = "-x", "-q", "--tb=no", "-m", "not controlplane and not needs"
MEMORY = 4 << 30  # bytes of each process: a change may make a loop endless


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str, Any]]:
    """Yield a node, one of its fields and the field's new value, for this node and all nodes below it."""
    is_text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    yield from ((node, *change) for change in _changes_of(node))
    for name, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            is_hidden = name in WITHOUT_BEHAVIOR or (is_text and isinstance(part, ast.Constant))
            if isinstance(part, ast.AST) and not is_hidden:
                yield from changes(part)


def _changes_of(node: ast.AST) -> Iterator[tuple[str, Any]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPS:
            yield "ops", [SWAPS[type(operator)]()]
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign() if type(node.op) in SWAPS:
            yield "op", SWAPS[type(node.op)]()
        case ast.If() | ast.IfExp():
            yield from (("test", ast.Constant(value)) for value in (True, False))
        case ast.While():
            yield "test", ast.Constant(False)
        case ast.comprehension() if node.ifs:
            yield "ifs", node.ifs[1:]
        case ast.UnaryOp(op=ast.Not()):
            yield "operand", ast.UnaryOp(ast.Not(), node.operand)
        case ast.Constant(bool(value)):
            yield "value", not value
        case ast.Constant(int(value) | float(value)):
            yield "value", value + 1
        case ast.Constant(str(value)) if value and " " not in value:  # a key, and not a sentence
            yield "value", f"{value}_"


def mutants(source: str, sample: int | None, seed: int) -> Iterator[tuple[str, str]]:
    """Yield each change of a file, or a sample of them: its line and code, before and after, and the whole source."""
    tree = ast.parse(source)
    found = list(changes(tree))
    for index in sorted(random.Random(seed).sample(range(len(found)), min(sample or len(found), len(found)))):
        node, field, value = found[index]
        old, before = getattr(node, field), _first_line(node)
        setattr(node, field, value)
        line = getattr(node, "lineno", None) or node.target.lineno  # a comprehension has no line
        yield f"{line}: {before} → {_first_line(node)}", ast.unparse(tree)
        setattr(node, field, old)


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).strip().partition("\n")[0]


def copy_sources(target: Path) -> None:
    """Copy the files that git knows, as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(lambda name: (ROOT / name).exists(), listed.strip("\0").split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def tests_of(file: Path) -> list[Path]:
    """Return the tests of a file's room: first those that are named after the file, to be fast."""
    room = Path("tests", file.parts[0] if file.parts[0] == "certs" else file.parts[1])
    return [*sorted(path.relative_to(ROOT) for path in (ROOT / room).glob(f"test_{file.stem}*.py")), room]


def passes(root: Path, tests: Path, seconds: float, output: int | None = subprocess.DEVNULL) -> bool:
    """Return whether tests pass in a copy of the sources, within so many seconds."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, str(tests)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(command, cwd=root, env=environment, stdout=output, start_new_session=True) as child:
        try:
            return child.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # also the servers that tests started


def main() -> None:
    """Print each change that survives, and how many were caught."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sample", type=int, help="how many changes to try, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(root := Path(folder))
        copied, tests, begin = root / arguments.file, tests_of(arguments.file), time.monotonic()
        if not passes(root, tests[-1], 900, output=None):
            sys.exit("the tests fail without a change")
        limit = 30 + 3 * (time.monotonic() - begin)
        outcomes = []
        for what, source in mutants(copied.read_text("utf-8"), arguments.sample, arguments.seed):
            copied.write_text(source, "utf-8")
            # Python takes a file of the same size and second for the one that it has compiled.
            Path(cache_from_source(copied)).unlink(missing_ok=True)
            outcomes.append(all(passes(root, part, limit) for part in tests))
            if outcomes[-1]:
                print(f"{arguments.file}:{what}", flush=True)
    print(f"{arguments.file}: {outcomes.count(False)} caught, {outcomes.count(True)} survived")


if __name__ == "__main__":
    main()
