"""The laws hold in every file, and each is shown a violation, so that it is known to bite."""

import math

import pytest

from tests.support import laws

PACKAGES = [*laws.ROOT.glob("webhook/**/*.py"), *laws.ROOT.glob("certs/**/*.py")]
TESTS = list(laws.ROOT.glob("tests/**/*.py"))
LONGEST_FUNCTION = 25  # lines, at the 90th percentile

KEPT_BY = {
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
        ("webhook/placement/affinity.py", "from datetime import datetime"),
        ("webhook/placement/affinity.py", "from os import environ"),
        ("webhook/placement/affinity.py", "from sys import intern, stderr"),
        ("webhook/placement/affinity.py", "def later():\n    import logging"),
        ("webhook/placement/affinity.py", "import certs.authority"),
        ("webhook/placement/affinity.py", "from webhook.serving import app"),
        ("webhook/placement/affinity.py", "from webhook.cluster.store import Store"),
        ("webhook/placement/affinity.py", "from ..cluster.store import Store"),
        ("webhook/placement/affinity.py", "from webhook import __version__"),
        ("webhook/placement/affinity.py", "open('/etc/hostname')"),
        ("webhook/placement/affinity.py", "print('pinned')"),
        ("webhook/placement/a_new_file.py", "import socket"),
    ],
    laws.one_door: [
        ("webhook/cluster/store.py", "import kubernetes.client"),
        ("certs/rotate.py", "from kubernetes import watch"),
        ("webhook/serving/server.py", "from flask import Flask"),
        ("webhook/placement/affinity.py", "import jsonpatch"),
        ("webhook/serving/server.py", "from cryptography import x509"),
        ("webhook/serving/app.py", "from gunicorn.app.base import BaseApplication"),
    ],
    laws.one_vocabulary: [
        ("webhook/serving/app.py", "class Reason(Enum): ..."),
        ("webhook/placement/decision.py", "class Reason(Enum): ...\nclass Reason(Enum): ..."),
        ("webhook/serving/app.py", "reason = 'NodeFull'"),
        ("webhook/placement/decision.py", "class Reason(Enum):\n    FULL = 'NodeFull'\nreason = 'NodeFull'"),
    ],
    laws.never_refused: [
        ("webhook/serving/review.py", "{'allowed': False}"),
        ("webhook/serving/review.py", "dict(allowed=False)"),
        ("webhook/serving/review.py", "response['allowed'] = False"),
        ("webhook/serving/review.py", "class Response:\n    allowed: bool = False"),
        ("webhook/serving/review.py", "def respond(uid, allowed=False, code=200): ..."),
        ("webhook/serving/review.py", "def respond(*, allowed=False): ..."),
    ],
    laws.never_silent: [
        ("webhook/serving/app.py", "try: run()\nexcept: log()"),
        ("webhook/serving/app.py", "try: run()\nexcept Exception: pass"),
        ("webhook/serving/app.py", "try: run()\nexcept (OSError, BaseException): ..."),
        ("webhook/serving/app.py", "for _ in runs:\n    try: run()\n    except Exception as error: continue"),
        ("webhook/serving/app.py", "def start():\n    try: run()\n    except Exception: return None"),
        ("webhook/serving/app.py", "with contextlib.suppress(Exception): run()"),
    ],
    laws.telling_names: [
        ("webhook/utils.py", ""),
        ("webhook/commands/helpers.py", ""),
        ("certs/manager.py", ""),
        ("webhook/serving/app.py", "def handle_review(): ..."),
        ("webhook/serving/app.py", "async def _process_review(): ..."),
        ("webhook/serving/app.py", "class App:\n    def handle_review(self): ..."),
    ],
    laws.door_sign: [("webhook/serving/app.py", "import flask"), ("certs/__init__.py", "")],
    laws.short_files: [("webhook/serving/app.py", "import flask\n" * 251)],
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
        ("webhook/serving/server.py", "import certs.authority"),
    ],
    laws.one_vocabulary: [
        ("webhook/placement/decision.py", "class Reason(Enum):\n    FULL = 'NodeFull'"),
        ("webhook/serving/app.py", "'NodeFull'\ndef full():\n    'NodeFull'"),
    ],
    laws.never_refused: [("webhook/serving/review.py", "{'allowed': True, 'dryRun': False}")],
    laws.never_silent: [
        ("webhook/serving/app.py", "try: run()\nexcept Exception: log()"),
        ("webhook/serving/app.py", "try: run()\nexcept KeyError: pass"),
    ],
    laws.telling_names: [
        ("webhook/serving/server.py", "class Worker(ThreadWorker):\n    def handle_request(self): ...")
    ],
    laws.fakes_not_patches: [
        ("tests/test_app.py", "monkeypatch.setenv('A', '1.2')\nmonkeypatch.setattr(app, 'clock', fake)")
    ],
}


def rows(table):
    return [
        pytest.param(law, *row, id=f"{law.__name__}: {row[-1][:60]!r} in {row[0]}")
        for law in table
        for row in table[law]
    ]


def ninetieth_percentile(numbers):
    return sorted(numbers)[math.ceil(len(numbers) * 0.9) - 1]


@pytest.mark.parametrize("law", KEPT_BY, ids=lambda law: law.__name__)
def test_every_file_keeps_the_law(law):
    sources = {
        file.relative_to(laws.ROOT).as_posix(): file.read_text(encoding="utf-8") for file in sorted(KEPT_BY[law])
    }
    broken = [f"{path}:{line}: {what}" for path, source in sources.items() for line, what in law(path, source)]
    assert not broken, "\n".join([law.__doc__, *broken])


@pytest.mark.parametrize(("law", "path", "source"), rows(PLANTED))
def test_a_planted_violation_is_found(law, path, source):
    assert list(law(path, source))


@pytest.mark.parametrize(("law", "path", "source"), rows(ALLOWED))
def test_what_only_looks_like_a_violation_is_not_one(law, path, source):
    assert not list(law(path, source))


def test_nine_functions_of_ten_fit_on_a_screen():
    lengths = [length for file in PACKAGES for length in laws.lengths(file.read_text(encoding="utf-8"))]
    assert ninetieth_percentile(lengths) <= LONGEST_FUNCTION


def test_too_many_long_functions_are_found():
    short, long = "def short(): ...\n", "def long():\n" + "    pass\n" * LONGEST_FUNCTION
    assert ninetieth_percentile(laws.lengths(short * 9 + long)) == 1
    assert ninetieth_percentile(laws.lengths(short * 8 + long * 2)) == LONGEST_FUNCTION + 1


def test_every_law_is_shown_a_violation():
    assert PLANTED.keys() == KEPT_BY.keys()
