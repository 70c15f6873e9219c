"""Show the webhook at work: real virt-launcher pods, sent to a real server over TLS.

    .venv/bin/python examples/demo.py [CLUSTER.yaml]

Fails, and says where, when an answer is not the one that scenes.yaml expects.
"""

import difflib
import http.client
import json
import os
import select
import ssl
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import jsonpatch
import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

HERE = Path(__file__).parent
SERVE = [str(Path(sys.executable).with_name("kubevirt-scheduler")), "serve", "--https-port=0", "--http-port=0"]
START, ANSWER, STOP = 20, 5, 10  # seconds, each many times what it takes
NEXT = """\
.venv/bin/kubevirt-scheduler explain -f examples/reviews/node-full.json \\
    --snapshot examples/cluster.yaml"""
COLOURS = {"pinned": "green", "preferred": "yellow", "unchanged": "blue", "+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said of a pod, and what the pod became."""

    scene: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    said: list[str]
    milliseconds: float

    @property
    def name(self) -> str:
        """The pod's name; the end of a generated one is not known yet."""
        return self.before["metadata"].get("name") or f"{self.before['metadata']['generateName']}…"

    @property
    def outcome(self) -> str:
        """What became of the pod, read from the pod and not from what the server says of it."""
        if self.after["spec"] == self.before["spec"]:
            return "unchanged"
        here = {"key": "metadata.name", "operator": "In", "values": [self.said[2]]}
        affinity = self.after["spec"]["affinity"]["nodeAffinity"]
        terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
        return "pinned" if terms and all(here in term.get("matchFields", []) for term in terms) else "preferred"

    @property
    def fault(self) -> str:
        """What is not as expected; empty when all is."""
        if self.said == self.scene["expected"] and self.outcome == self.said[0]:
            return ""
        said, expected = " ".join(self.said).strip(), " ".join(self.scene["expected"]).strip()
        return f"{self.scene['review']}.json: expected {expected}, was told {said}, and the pod is {self.outcome}"


@contextmanager
def serving(cluster: str, log: IO[str]) -> Iterator[dict[str, str]]:
    """Run the server on free ports, and say where it listens and who signed its certificate."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CO_SCHEDULE_")}
    command = [*SERVE, "--snapshot", cluster]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as server:
        try:
            assert server.stdout
            ready, _, _ = select.select([server.stdout], [], [], START)
            line = server.stdout.readline() if ready else ""
            if not line:
                sys.exit(f"the server did not start\n{Path(log.name).read_text()}")
            yield json.loads(line)
        except (OSError, http.client.HTTPException) as error:
            sys.exit(f"the server did not answer: {error!r}\n{Path(log.name).read_text()}")
        finally:
            server.terminate()
            try:
                server.wait(STOP)
            except subprocess.TimeoutExpired:
                server.kill()


def ask(connection: http.client.HTTPSConnection, scene: dict[str, Any]) -> Answer:
    """Send a review as an API server does, and apply the patch that comes back."""
    body = (HERE / "reviews" / f"{scene['review']}.json").read_bytes()
    start = time.perf_counter()
    connection.request("POST", "/mutate?timeout=5s", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    milliseconds = 1000 * (time.perf_counter() - start)
    if answer.status != http.HTTPStatus.OK:
        sys.exit(f"{scene['review']}.json: the server answered {answer.status}: {content.decode()}")
    before, response = json.loads(body)["request"]["object"], json.loads(content)["response"]
    after = jsonpatch.apply_patch(before, b64decode(response["patch"])) if "patch" in response else before
    said = [response["auditAnnotations"][key] for key in ("outcome", "reason", "node")]
    return Answer(scene, before, after, said, milliseconds)


def table(answers: list[Answer]) -> Table:
    """Lay the answers out, each with its situation below it."""
    title = "Pods as KubeVirt and Longhorn create them, and what the webhook answers over HTTPS"
    found = Table(title=title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("pod", "outcome", "reason", "node"):
        found.add_column(heading)
    found.add_column("ms", justify="right", min_width=5)
    for answer in answers:
        outcome, reason, node = answer.said
        pod = Text.assemble(answer.name, (f"\n  {answer.scene['situation']}", "dim"))
        style = "bold red" if answer.fault else COLOURS[outcome]
        found.add_row(pod, Text(outcome, style), reason, node, f"{answer.milliseconds:.1f}")
    return found


def difference(answer: Answer) -> Iterator[Text]:
    """Compare the pod's YAML before and after, as `diff -u` does."""
    old, new = (yaml.safe_dump(pod, sort_keys=False, width=100).splitlines() for pod in (answer.before, answer.after))
    for line in difflib.unified_diff(old, new, "as KubeVirt made it", "as it is created", lineterm="", n=2):
        yield Text(line, COLOURS.get(line[0], ""))


def main(cluster: str) -> str | None:
    """Play the scenes; return what was not as expected, a line each, and None when all was."""
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log, serving(cluster, log) as server:
        host, _, port = server["https"].rpartition(":")
        trust = ssl.create_default_context(cafile=server["ca"])
        with closing(http.client.HTTPSConnection(host, int(port), timeout=ANSWER, context=trust)) as connection:
            connection.connect()  # a handshake for all: an API server keeps its connections, too
            answers = [ask(connection, scene) for scene in yaml.safe_load((HERE / "scenes.yaml").read_text())]
    console.print(table(answers))
    for answer in answers:
        if answer.outcome == "preferred" and answer.said[1] != "CoScheduled":
            why = answer.after["metadata"]["annotations"]["kubevirt-scheduler/decision"]
            console.print(Text.assemble((f"Why {answer.name} is not pinned: ", "bold"), why, "\n"))
    console.print(f"The difference in the first one, {answers[0].name}:", style="bold")
    console.print(*difference(answers[0]), sep="\n")
    console.print("\nNext, let it explain itself:", style="bold")
    console.print(NEXT)
    return "\n".join(answer.fault for answer in answers if answer.fault) or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else str(HERE / "cluster.yaml")))
