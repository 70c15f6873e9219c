"""`make test` passes on a machine that lacks the programs of tests/support/needs.py, and CI fails there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.paths import ROOT

BASIC_PROGRAMS = ("bash", "env", "sed")  # part of every Debian


def run_pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run tests with a PATH that has only basic programs, and an empty cache for built programs."""
    programs = folder / "bin"
    programs.mkdir()
    for name in BASIC_PROGRAMS:
        (programs / name).symlink_to(str(shutil.which(name)))
    fresh = {"PATH": str(programs), "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)} | environment
    command = [sys.executable, "-m", "pytest", "-n0", f"--override-ini=cache_dir={folder}/pytest", *arguments]
    return subprocess.run(command, cwd=ROOT, env=fresh, capture_output=True, text=True, timeout=120, check=False)


def test_without_the_programs_their_tests_are_skipped_with_a_reason_and_nothing_is_built(tmp_path: Path) -> None:
    marked = [str(file) for file in ROOT.glob("tests/**/test_*.py") if "mark.needs" in file.read_text()]
    run = run_pytest(tmp_path, "-m", "needs", *marked)
    assert run.returncode == 0, run.stdout
    last_lines = run.stdout.partition(" skipped ")[2]
    # `make check` runs actionlint.
    for name in set(needs.PROGRAMS) - {"actionlint"}:
        assert re.search(rf"^\d+ skipped: .*{re.escape(needs.advice(name))}", last_lines, re.MULTILINE)
    assert " passed" not in run.stdout
    assert not (tmp_path / "cache").exists()


def test_under_ci_a_missing_program_fails_its_tests_and_no_others(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "tests/test_fresh_machine.py", "-k", "it_declares or not_declare", CI="true")
    assert run.returncode == 1, run.stdout
    assert re.search(r"1 passed, .*1 error", run.stdout)
    assert "no openssl on the PATH (apt-get install openssl)" in run.stdout


def test_a_test_cannot_run_a_program_that_it_does_not_declare() -> None:
    with pytest.raises(needs.MissingProgramError, match=r'mark it with @pytest.mark.needs\("openssl"\)'):
        needs.find("openssl")


@pytest.mark.needs("openssl")
def test_a_test_can_run_a_program_that_it_declares() -> None:
    assert Path(needs.find("openssl")).name == "openssl"


def test_the_packages_of_missing_programs_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert needs.missing_packages(["promtool", "prometheus", "openssl"]) == ["openssl", "prometheus"]
    (tmp_path / "openssl").symlink_to(sys.executable)
    assert needs.missing_packages(["promtool", "prometheus", "openssl"]) == ["prometheus"]
