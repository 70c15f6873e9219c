"""Every file obeys the laws, and each law finds the violations that are planted for it."""

import math
from collections import Counter

import pytest

from tests.support import laws

PACKAGES = [*laws.ROOT.glob("webhook/**/*.py"), *laws.ROOT.glob("certs/**/*.py")]
TESTS = list(laws.ROOT.glob("tests/**/*.py"))
MOST_FILES = 16
LONGEST_FUNCTION = 25  # lines, the 90th percentile

SCOPES = {
    laws.purity: PACKAGES,
    laws.one_door: PACKAGES,
    laws.one_vocabulary: PACKAGES,
    laws.never_refused: PACKAGES,
    laws.never_silent: PACKAGES,
    laws.telling_names: PACKAGES,
    laws.door_sign: PACKAGES,
    laws.short_files: PACKAGES,
    laws.fakes_not_patches: TESTS,
}

PLANTED = {
    laws.purity: [
        ("webhook/placement/affinity.py", "import time"),
        ("webhook/placement/affinity.py", "from sys import intern, stderr"),
        ("webhook/placement/affinity.py", "def later():\n    import logging"),
        ("webhook/placement/affinity.py", "from webhook.cluster.caches.store import Store"),
        ("webhook/placement/affinity.py", "from ..cluster.store import Store"),
        ("webhook/placement/affinity.py", "open('/etc/hostname')"),
        ("webhook/placement/a_new_file.py", "import socket"),
        ("webhook/placement/guard/a_new_file.py", "from webhook.fleet import states"),
        ("webhook/fleet/states.py", "import logging"),
    ],
    laws.one_door: [
        ("webhook/cluster/caches/store.py", "import kubernetes.client"),
        ("certs/controller.py", "from kubernetes import watch"),
        ("webhook/serving/worker.py", "from cryptography import x509"),
    ],
    laws.one_vocabulary: [
        ("webhook/serving/app.py", "class Reason(Enum): ..."),
        ("webhook/placement/reasons.py", "class Reason(Enum): ...\nclass Reason(Enum): ..."),
        ("webhook/serving/app.py", "reason = 'NodeFull'"),
        ("webhook/placement/reasons.py", "class Reason(Enum):\n    FULL = 'NodeFull'\nreason = 'NodeFull'"),
    ],
    laws.never_refused: [
        ("webhook/serving/review/admission_review.py", "{'allowed': False}"),
        ("webhook/serving/review/admission_review.py", "response['allowed'] = False"),
        ("webhook/serving/review/admission_review.py", "class Response:\n    allowed: bool = False"),
        ("webhook/serving/review/admission_review.py", "def respond(uid, allowed=False, code=200): ..."),
        ("webhook/serving/review/admission_review.py", "def respond(*, allowed=False): ..."),
    ],
    laws.never_silent: [
        ("webhook/serving/app.py", "try: run()\nexcept: log()"),
        ("webhook/serving/app.py", "try: run()\nexcept (OSError, BaseException): ..."),
        ("webhook/serving/app.py", "for _ in runs:\n    try: run()\n    except Exception as error: continue"),
        ("webhook/serving/app.py", "def start():\n    try: run()\n    except Exception: return None"),
        ("webhook/serving/app.py", "with contextlib.suppress(Exception): run()"),
    ],
    laws.telling_names: [
        ("webhook/commands/helpers.py", ""),
        ("webhook/serving/app.py", "async def _process_review(): ..."),
        ("webhook/serving/app.py", "class App:\n    def handle_review(self): ..."),
    ],
    laws.door_sign: [("webhook/serving/http/parser.py", "import httptools"), ("certs/__init__.py", "")],
    laws.short_files: [("webhook/serving/app.py", "import json\n" * (laws.MAX_FILE_LINES + 1))],
    laws.fakes_not_patches: [
        ("tests/test_app.py", "mock.patch('webhook.serving.app.inject')"),
        ("tests/test_app.py", "@patch('webhook.serving.app.inject')\ndef test_it(): ..."),
        ("tests/test_app.py", "mock.patch.dict('os.environ')"),
        ("tests/test_app.py", "monkeypatch.setattr('webhook.serving.app.inject', fake)"),
    ],
}

ALLOWED = {
    laws.purity: [
        (
            "webhook/placement/affinity.py",
            "import re\nfrom sys import intern\nfrom webhook.placement import resolve\nfrom .shape import text",
        ),
        ("webhook/serving/app.py", "import time"),
        ("webhook/commands/inject.py", "import sys\nprint()"),
    ],
    laws.one_door: [
        ("webhook/cluster/client.py", "import kubernetes"),
        ("webhook/serving/worker.py", "import certs.authority"),
    ],
    laws.one_vocabulary: [
        ("webhook/placement/reasons.py", "class Reason(Enum):\n    FULL = 'NodeFull'"),
        ("webhook/serving/app.py", "'NodeFull'\ndef full():\n    'NodeFull'"),
    ],
    laws.never_refused: [("webhook/serving/review/admission_review.py", "{'allowed': True, 'dryRun': False}")],
    laws.never_silent: [
        ("webhook/serving/app.py", "try: run()\nexcept Exception: log()"),
        ("webhook/serving/app.py", "try: run()\nexcept KeyError: pass"),
    ],
    laws.telling_names: [
        ("webhook/serving/worker.py", "class Worker(ThreadWorker):\n    def handle_request(self): ...")
    ],
    laws.fakes_not_patches: [
        ("tests/test_app.py", "monkeypatch.setenv('A', '1.2')\nmonkeypatch.setattr(app, 'clock', fake)")
    ],
}


def law_cases(table):
    return [
        pytest.param(law, *row, id=f"{law.__name__}: {row[-1][:60]!r} in {row[0]}")
        for law in table
        for row in table[law]
    ]


def ninetieth_percentile(numbers):
    return sorted(numbers)[math.ceil(len(numbers) * 0.9) - 1]


def test_a_room_has_at_most_16_files_side_by_side():
    sizes = Counter(file.parent for file in PACKAGES)
    assert {folder.name: files for folder, files in sizes.items() if files > MOST_FILES} == {}


@pytest.mark.parametrize("law", SCOPES, ids=lambda law: law.__name__)
def test_every_file_obeys_the_law(law):
    sources = {file.relative_to(laws.ROOT).as_posix(): file.read_text(encoding="utf-8") for file in sorted(SCOPES[law])}
    violations = [f"{path}:{line}: {what}" for path, source in sources.items() for line, what in law(path, source)]
    assert not violations, "\n".join([law.__doc__, *violations])


@pytest.mark.parametrize(("law", "path", "source"), law_cases(PLANTED))
def test_a_planted_violation_is_found(law, path, source):
    assert list(law(path, source))


@pytest.mark.parametrize(("law", "path", "source"), law_cases(ALLOWED))
def test_permitted_code_is_no_violation(law, path, source):
    assert not list(law(path, source))


def test_the_90th_percentile_of_function_lengths_is_at_most_25_lines():
    lengths = [length for file in PACKAGES for length in laws.lengths(file.read_text(encoding="utf-8"))]
    assert ninetieth_percentile(lengths) <= LONGEST_FUNCTION


def test_the_90th_percentile_exceeds_the_limit_if_a_fifth_of_the_functions_is_long():
    short, long = "def short(): ...\n", "def long():\n" + "    pass\n" * LONGEST_FUNCTION
    assert ninetieth_percentile(laws.lengths(short * 9 + long)) == 1
    assert ninetieth_percentile(laws.lengths(short * 8 + long * 2)) == LONGEST_FUNCTION + 1


def test_every_law_has_planted_violations():
    assert PLANTED.keys() == SCOPES.keys()
