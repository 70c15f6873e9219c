"""Every file obeys the laws of contributing.md, and each law finds the violations that are planted for it.

A law is a function of a file's path and source that yields (line, violation).
"""

import ast
from collections import Counter
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from setuptools import find_packages

from tests.support.paths import ROOT

Violations = Iterator[tuple[int, str]]


# Modules that only calculate: they give no access to a clock, environment, logger, thread, socket or client.
PURE_MODULES = """
    base64 bisect collections collections.abc contextlib.AbstractContextManager copy dataclasses datetime.datetime
    decimal difflib enum fractions functools hashlib heapq itertools json jsonpatch math msgspec msgspec.structs
    operator re string sys.intern textwrap types typing unicodedata urllib.parse
""".split()
# The modules that may import a library.
DOORS = {
    "kubernetes": ["webhook/cluster/credentials.py", "certs/cluster.py"],
    "flask": ["webhook/serving/app.py"],
    "jsonpatch": ["webhook/placement/patch.py"],
    "cryptography": ["certs/authority.py"],
    "gunicorn": ["webhook/serving/worker/gunicorn_worker.py"],
    "httptools": ["webhook/serving/worker/parser.py"],
}
# Each pure folder with the rooms that it may import.
PURE_FOLDERS = {
    "webhook/catalog/": ("webhook.catalog", "webhook.fleet", "webhook.placement"),
    "webhook/placement/": ("webhook.placement",),
    "webhook/fleet/": ("webhook.fleet", "webhook.placement"),
}
REASON_FILE = "webhook/placement/reasons.py"
MAX_FILE_LINES = 450  # about 400, with some leeway so that nobody splits an idea for the sake of ten lines

MOST_PARALLEL = 120  # assignments of several values to as many names

parse = cache(ast.parse)


def nodes(source: str, *kinds: type[ast.AST]) -> Iterator[Any]:
    return (node for node in ast.walk(parse(source)) if isinstance(node, kinds))


def name_of(node: ast.AST | None) -> str:
    """Return the last name of an expression: `c` of `a.b.c`, `key` of `"key"` and of `x["key"]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.Constant(value=str(name)):
            return name
        case ast.Subscript(slice=inner):
            return name_of(inner)
    return ""


def imports(path: str, source: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the line, the module and the full names of each import. The names may be modules too."""
    for node in nodes(source, ast.Import):
        yield from ((node.lineno, alias.name, []) for alias in node.names)
    for node in nodes(source, ast.ImportFrom):
        parents = path.split("/")[: -node.level] if node.level else []
        module = ".".join([*parents, *filter(None, [node.module])])
        yield node.lineno, module, [f"{module}.{alias.name}" for alias in node.names]


def purity(path: str, source: str) -> Violations:
    """Everything in placement/ and fleet/ is a function of (request, catalog, settings)."""
    rooms = next((rooms for folder, rooms in PURE_FOLDERS.items() if path.startswith(folder)), None)
    if rooms is None:
        return
    for line, module, inside in imports(path, source):
        calculates = module in PURE_MODULES or (inside and set(inside) <= set(PURE_MODULES))
        if not calculates and not module.replace("/", ".").startswith(rooms):
            yield line, f"a pure file imports {module}"
    for call in nodes(source, ast.Call):
        if name_of(call.func) in {"open", "print", "input", "__import__", "now", "today", "utcnow"}:
            yield call.lineno, f"a pure file calls {name_of(call.func)}"


def one_door(path: str, source: str) -> Violations:
    """In each package, one file imports a library."""
    for line, module, _ in imports(path, source):
        library = module.split(".")[0]
        if path not in DOORS.get(library, [path]):
            yield line, f"{library} may only be imported in {DOORS[library]}"


def strings(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the string literals in a node, except docstrings."""
    docstrings = {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Expr)}
    return (
        n for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str) and n not in docstrings
    )


def reasons(source: str) -> list[ast.ClassDef]:
    return [node for node in nodes(source, ast.ClassDef) if node.name == "Reason"]


REASON_VALUES = {
    word.value for reason in reasons((ROOT / REASON_FILE).read_text(encoding="utf-8")) for word in strings(reason)
}


def one_vocabulary(path: str, source: str) -> Violations:
    """There is one Reason enum, and each of its values is written once."""
    defined = reasons(source)[:1] if path == REASON_FILE else []
    yield from ((reason.lineno, "a second Reason") for reason in reasons(source) if reason not in defined)
    own = {word for reason in defined for word in strings(reason)}
    for word in strings(parse(source)):
        if word.value in REASON_VALUES and word not in own and path.startswith("webhook/"):
            yield word.lineno, f'"{word.value}" instead of the Reason'


def bindings(source: str) -> Iterator[tuple[ast.AST | None, ast.AST | None]]:
    """Yield (name, value) of each dict item, keyword argument, assignment and parameter default."""
    for node in ast.walk(parse(source)):
        match node:
            case ast.Dict(keys=keys, values=values):
                yield from zip(keys, values, strict=True)
            case ast.keyword(arg=arg, value=value):
                yield ast.Constant(arg), value
            case ast.Assign(targets=targets, value=value):
                yield from ((target, value) for target in targets)
            case ast.AnnAssign(target=target, value=value):
                yield target, value
            case ast.arguments(args=args, defaults=defaults, kwonlyargs=kwonlyargs, kw_defaults=kw_defaults):
                yield from zip(reversed(args), reversed(defaults), strict=False)
                yield from zip(kwonlyargs, kw_defaults, strict=True)


def never_refused(_: str, source: str) -> Violations:
    """No response denies a VM."""
    for target, value in bindings(source):
        if name_of(target) == "allowed" and isinstance(value, ast.Constant) and value.value is False:
            yield value.lineno, "allowed is false"


def functions(source: str) -> Iterator[Any]:
    return nodes(source, ast.FunctionDef, ast.AsyncFunctionDef)


def telling_names(path: str, source: str) -> Violations:
    """The name of a file or function says what it does, and the name of a parameter or field what it is."""
    if Path(path).stem in {"utils", "helpers", "common", "manager"}:
        yield 1, "the file name does not say what the file does"
    # A base class may define a method's name: gunicorn calls a worker's handle_request.
    inherited = {method for owner in nodes(source, ast.ClassDef) if owner.bases for method in owner.body}
    for function in functions(source):
        if function.name.lstrip("_").startswith(("handle_", "process_")) and function not in inherited:
            yield function.lineno, f"{function.name} does not say what it does"
    parameters = ((each, each.arg) for each in nodes(source, ast.arg))
    members = (each for owner in nodes(source, ast.ClassDef) for each in owner.body)
    fields = ((each, name_of(each.target)) for each in members if isinstance(each, ast.AnnAssign))
    for node, name in (*parameters, *fields):
        if name == "found":
            yield node.lineno, "found: name what was found"


def short_files(_: str, source: str) -> Violations:
    """A file is short enough to read in one sitting."""
    if source.count("\n") > MAX_FILE_LINES:
        yield MAX_FILE_LINES + 1, f"longer than {MAX_FILE_LINES} lines"


def flat_conditions(_: str, source: str) -> Violations:
    """A conditional expression contains no other one: name the inner value first, or use statements."""
    for node in nodes(source, ast.IfExp):
        inner = (part for part in ast.walk(node) if isinstance(part, ast.IfExp) and part is not node)
        if any(inner):
            yield node.lineno, f"nested: {ast.unparse(node)[:100]}"


def fakes_not_patches(_: str, source: str) -> Violations:
    """A test passes a fake as an argument. It does not patch a module by its dotted name."""
    for call in nodes(source, ast.Call):
        callee = ast.unparse(call.func).split(".")
        by_name = bool(call.args) and isinstance(call.args[0], ast.Constant) and "." in str(call.args[0].value)
        if by_name and ("patch" in callee or callee[-2:] in (["monkeypatch", "setattr"], ["monkeypatch", "delattr"])):
            yield call.lineno, f"patches {ast.unparse(call.args[0])}"


PACKAGES = [*ROOT.glob("webhook/**/*.py"), *ROOT.glob("certs/**/*.py")]
TESTS = list(ROOT.glob("tests/**/*.py"))
MOST_FILES = 16
LONGEST_FUNCTION = 25  # lines, the 90th percentile

SCOPES = {
    purity: PACKAGES,
    one_door: PACKAGES,
    one_vocabulary: PACKAGES,
    never_refused: PACKAGES,
    telling_names: PACKAGES,
    short_files: PACKAGES,
    flat_conditions: PACKAGES,
    fakes_not_patches: TESTS,
}

PLANTED = {
    purity: [
        ("webhook/placement/affinity.py", "import time"),
        ("webhook/placement/affinity.py", "from sys import intern, stderr"),
        ("webhook/placement/affinity.py", "def later():\n    import logging"),
        ("webhook/placement/affinity.py", "from webhook.catalog.store import Store"),
        ("webhook/placement/affinity.py", "open('/etc/hostname')"),
        ("webhook/placement/guard/a_new_file.py", "from webhook.fleet import states"),
        ("webhook/fleet/states.py", "import logging"),
    ],
    one_door: [
        ("webhook/catalog/store.py", "import kubernetes.client"),
        ("certs/controller.py", "from kubernetes import watch"),
    ],
    one_vocabulary: [
        ("webhook/serving/app.py", "class Reason(Enum): ..."),
        ("webhook/placement/reasons.py", "class Reason(Enum): ...\nclass Reason(Enum): ..."),
        ("webhook/serving/app.py", "reason = 'NodeFull'"),
        ("webhook/placement/reasons.py", "class Reason(Enum):\n    FULL = 'NodeFull'\nreason = 'NodeFull'"),
    ],
    never_refused: [
        ("webhook/serving/review/admission_review.py", "{'allowed': False}"),
        ("webhook/serving/review/admission_review.py", "response['allowed'] = False"),
        ("webhook/serving/review/admission_review.py", "class Response:\n    allowed: bool = False"),
        ("webhook/serving/review/admission_review.py", "def respond(uid, allowed=False, code=200): ..."),
        ("webhook/serving/review/admission_review.py", "def respond(*, allowed=False): ..."),
    ],
    telling_names: [
        ("webhook/commands/helpers.py", ""),
        ("webhook/serving/app.py", "async def _process_review(): ..."),
        ("webhook/serving/app.py", "class App:\n    def handle_review(self): ..."),
        ("webhook/serving/app.py", "def respond(found): ..."),
        ("webhook/serving/app.py", "class App:\n    found: str"),
    ],
    short_files: [("webhook/serving/app.py", "import json\n" * (MAX_FILE_LINES + 1))],
    flat_conditions: [
        ("webhook/serving/app.py", "a = 1 if b else 2 if c else 3"),
        ("webhook/serving/app.py", "a = (1 if b else 2) if c else 3"),
        ("webhook/serving/app.py", "a = f\"{'VM' if b == 1 else 'VMs'}\" if b else ''"),
    ],
    fakes_not_patches: [
        ("tests/test_app.py", "mock.patch('webhook.serving.app.inject')"),
        ("tests/test_app.py", "@patch('webhook.serving.app.inject')\ndef test_it(): ..."),
        ("tests/test_app.py", "mock.patch.dict('os.environ')"),
        ("tests/test_app.py", "monkeypatch.setattr('webhook.serving.app.inject', fake)"),
    ],
}


def test_a_room_has_at_most_16_files_side_by_side():
    sizes = Counter(file.parent for file in PACKAGES)
    assert {folder.name: files for folder, files in sizes.items() if files > MOST_FILES} == {}


def test_the_wheel_contains_every_room():
    declared = ConfigParser()
    declared.read(ROOT / "setup.cfg")
    rooms = find_packages(ROOT, include=declared["options.packages.find"]["include"].split())
    assert declared["options"]["packages"] == "find:"
    assert {file.parent.relative_to(ROOT).as_posix().replace("/", ".") for file in PACKAGES} == set(rooms)


@pytest.mark.parametrize("law", SCOPES, ids=lambda law: law.__name__)
def test_every_file_obeys_the_law(law):
    sources = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in sorted(SCOPES[law])}
    violations = [f"{path}:{line}: {what}" for path, source in sources.items() for line, what in law(path, source)]
    assert not violations, "\n".join([law.__doc__, *violations])


def test_each_planted_violation_is_found():
    planted = [(law, path, source) for law, rows in PLANTED.items() for path, source in rows]
    assert [(path, source) for law, path, source in planted if not list(law(path, source))] == []


def test_the_90th_percentile_of_function_lengths_is_at_most_25_lines():
    found = [each for file in PACKAGES for each in functions(file.read_text(encoding="utf-8"))]
    lengths = sorted(each.end_lineno - each.lineno + 1 for each in found)
    assert lengths[len(lengths) * 9 // 10] <= LONGEST_FUNCTION


def parallel_assignments(source: str) -> Iterator[ast.Assign]:
    """Yield each `a, b = c, d`. One name a line is easier to read where a value is computed."""
    for node in nodes(source, ast.Assign):
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield node


def test_there_are_at_most_120_parallel_assignments():
    assert len([*parallel_assignments("a, b = c, d; e = f, g; h, i = j")]) == 1
    found = [each for file in PACKAGES for each in parallel_assignments(file.read_text(encoding="utf-8"))]
    assert len(found) <= MOST_PARALLEL


def test_every_law_has_planted_violations():
    assert PLANTED.keys() == SCOPES.keys()
