"""Print the SLSA provenance of the image that the release workflow built: its commit, its base image, and its builder.

Takes the base image as NAME:TAG@DIGEST. The action that attests provenance knows nothing of a base image.
https://slsa.dev/spec/v1.0/provenance
"""

import json
import os
import sys

reference, _, digest = sys.argv[1].partition("@")
algorithm, _, value = digest.partition(":")
if not value:
    sys.exit(f"provenance.py: {sys.argv[1]!r} has no digest; the tag {reference} could name another image by now")
names = "SERVER_URL", "REPOSITORY", "REF", "SHA", "WORKFLOW_REF", "RUN_ID", "RUN_ATTEMPT"
server, repository, ref, commit, workflow, run_id, attempt = (os.environ[f"GITHUB_{name}"] for name in names)
source = f"{server}/{repository}"
predicate = {
    "buildDefinition": {
        "buildType": "https://actions.github.io/buildtypes/workflow/v1",
        "externalParameters": {
            "workflow": {
                "ref": ref,
                "repository": source,
                "path": workflow.partition("@")[0].removeprefix(f"{repository}/"),
            }
        },
        "resolvedDependencies": [
            {"uri": f"git+{source}@{ref}", "digest": {"gitCommit": commit}},
            {"uri": f"docker://{reference}", "digest": {algorithm: value}},
        ],
    },
    "runDetails": {
        "builder": {"id": f"{server}/{workflow}"},
        "metadata": {"invocationId": f"{source}/actions/runs/{run_id}/attempts/{attempt}"},
    },
}
print(json.dumps(predicate, indent=2))
