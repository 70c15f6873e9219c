"""Each benchmark can be called as docs/development/measurements.md does, from a shell in the checkout."""

import os
import subprocess
import sys

from tests.support.paths import ROOT

# Import each file as `python benchmarks/X.py` does: with the file's folder on the path, but not the checkout. Each has
# a process of its own, because an earlier one may have put the checkout on the path. All of them share the installed
# packages, whose import takes most of the time.
DRIVER = """
import os, runpy, sys, traceback
import click, cryptography.x509, pytest, rich.console, rich.table, yaml
import webhook.cli, webhook.cluster.live_catalog, webhook.serving.worker

sys.path[0] = os.path.abspath("benchmarks")
for file in sys.argv[1:]:
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            print(file)
        continue
    try:
        runpy.run_path(file, run_name="imported")
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
"""


def test_each_benchmark_can_be_imported_from_a_shell_in_the_checkout() -> None:
    """Two of them could not, for a while: nobody runs them all."""
    files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "benchmarks").glob("*.py"))
    assert len(files) > 20
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", DRIVER, *files]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
