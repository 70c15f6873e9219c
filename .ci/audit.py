"""Check the packages of a lock file against the advisory database.

Fail on a known vulnerability. Print a note, but don't fail, if the database can't be reached.
"""

import json
import subprocess
import sys

PIP_AUDIT = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--progress-spinner=off"]

run = subprocess.run([*PIP_AUDIT, "--format=json", f"--requirement={sys.argv[1]}"], capture_output=True, text=True)
if not run.stdout:
    last_line = run.stderr.strip().rpartition("\n")[2]
    # pip-audit prints some connection errors as tracebacks of requests and wraps others. Both kinds match here.
    if "requests.exceptions" not in last_line and "connect" not in last_line:
        sys.exit(last_line)
    print("  not checked: the advisory database can't be reached")
    sys.exit()

packages = json.loads(run.stdout)["dependencies"]
# An index without advisories responds with 404, which pip-audit reports as "No known vulnerabilities found".
checked = [package for package in packages if "vulns" in package]
if len(checked) < len(packages):
    print(f"  not checked: {len(packages) - len(checked)} of {len(packages)} packages, the database does not answer")
sys.exit(
    "\n".join(
        f"{package['name']} {package['version']}: {advisory['id']}, fixed in {advisory['fix_versions']}"
        for package in checked
        for advisory in package["vulns"]
    )
    or 0
)
