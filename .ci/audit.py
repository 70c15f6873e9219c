"""Look a lock's versions up in the advisory database: fail on a finding, say so where it could not be asked."""

import json
import subprocess
import sys

PIP_AUDIT = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--progress-spinner=off"]

run = subprocess.run([*PIP_AUDIT, "--format=json", f"--requirement={sys.argv[1]}"], capture_output=True, text=True)
if not run.stdout:
    complaint = run.stderr.strip().rpartition("\n")[2]
    # Some of its HTTP client's errors leave pip-audit as tracebacks, others wrapped: both speak of the connection.
    if "requests.exceptions" not in complaint and "connect" not in complaint:
        sys.exit(complaint)
    print("  not checked: the advisory database can't be reached")
    sys.exit()

packages = json.loads(run.stdout)["dependencies"]
# An index that serves files but no advisories answers 404, of which pip-audit makes "No known vulnerabilities found".
asked = [package for package in packages if "vulns" in package]
if len(asked) < len(packages):
    print(f"  not checked: {len(packages) - len(asked)} of {len(packages)} packages, the database does not answer")
sys.exit(
    "\n".join(
        f"{package['name']} {package['version']}: {advisory['id']}, fixed in {advisory['fix_versions']}"
        for package in asked
        for advisory in package["vulns"]
    )
    or 0
)
