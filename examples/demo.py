"""Run the webhook server, send it virt-launcher and share-manager pods over TLS, and print the responses.

    .venv/bin/python examples/demo.py [CLUSTER.yaml]

Then print the report on the VMs of a shop in the same cluster.

Exit with an error that names the review if a response differs from the one in scenes.yaml.
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

EXAMPLES = Path(__file__).parent
PROGRAM = str(Path(sys.executable).with_name("kubevirt-scheduler"))
SERVE = [PROGRAM, "serve", "--https-port=0", "--http-port=0"]
# Seconds, each many times the usual duration. A busy machine may take a minute to start the server.
START_TIMEOUT, RESPONSE_TIMEOUT, STOP_TIMEOUT = 120, 5, 10
COMMAND = ".venv/bin/kubevirt-scheduler"  # works without an activated environment
EXPLAIN_COMMAND = f"""\
{COMMAND} explain -f examples/reviews/node-full.json \\
    --snapshot examples/cluster.yaml"""
COLORS = {"pinned": "green", "preferred": "yellow", "unchanged": "blue", "+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's response for one pod, and the pod before and after the patch."""

    scene: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    reported: list[str]  # outcome, reason and node, as the audit annotations state them
    milliseconds: float

    @property
    def name(self) -> str:
        """The pod's name. The API server has not completed a generated name yet."""
        return self.before["metadata"].get("name") or f"{self.before['metadata']['generateName']}…"

    @property
    def outcome(self) -> str:
        """The outcome, read from the patched pod and not from the response's audit annotations."""
        if self.after["spec"] == self.before["spec"]:
            return "unchanged"
        target_node = {"key": "metadata.name", "operator": "In", "values": [self.reported[2]]}
        affinity = self.after["spec"]["affinity"]["nodeAffinity"]
        terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
        return "pinned" if terms and all(target_node in term.get("matchFields", []) for term in terms) else "preferred"

    @property
    def mismatch(self) -> str:
        """The difference from the expected response, empty if there is none."""
        if self.reported == self.scene["expected"] and self.outcome == self.reported[0]:
            return ""
        reported, expected = " ".join(self.reported).strip(), " ".join(self.scene["expected"]).strip()
        return f"{self.scene['review']}.json: expected {expected}, got {reported}, and the pod is {self.outcome}"


@contextmanager
def running_server(cluster: str, log: IO[str], patience: float = START_TIMEOUT) -> Iterator[dict[str, str]]:
    """Run the server on free ports, and yield its addresses and the path of its CA. Exits after `patience` seconds."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CO_SCHEDULE_")}
    command = [*SERVE, "--snapshot", cluster]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as server:
        try:
            assert server.stdout
            ready, _, _ = select.select([server.stdout], [], [], patience)
            line = server.stdout.readline() if ready else ""
            if not line:
                problem = "the server ended" if ready else f"the server did not start within {patience} s"
                sys.exit(f"{problem}\n{Path(log.name).read_text()}")
            yield json.loads(line)
        except (OSError, http.client.HTTPException) as error:
            sys.exit(f"the server did not respond: {error!r}\n{Path(log.name).read_text()}")
        finally:
            server.terminate()
            try:
                server.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                server.kill()


def send_review(connection: http.client.HTTPSConnection, scene: dict[str, Any]) -> Answer:
    """Send a review as an API server does, and apply the patch of the response."""
    body = (EXAMPLES / "reviews" / f"{scene['review']}.json").read_bytes()
    start = time.perf_counter()
    connection.request("POST", "/mutate?timeout=5s", body, {"Content-Type": "application/json"})
    http_response = connection.getresponse()
    content = http_response.read()
    milliseconds = 1000 * (time.perf_counter() - start)
    if http_response.status != http.HTTPStatus.OK:
        sys.exit(f"{scene['review']}.json: the server responded with {http_response.status}: {content.decode()}")
    before, response = json.loads(body)["request"]["object"], json.loads(content)["response"]
    after = jsonpatch.apply_patch(before, b64decode(response["patch"])) if "patch" in response else before
    reported = [response["auditAnnotations"][key] for key in ("outcome", "reason", "node")]
    return Answer(scene, before, after, reported, milliseconds)


def table(answers: list[Answer]) -> Table:
    """Return a table of the answers, each with its situation below it."""
    title = "Pods as KubeVirt and Longhorn create them, and the webhook's responses over HTTPS"
    answer_table = Table(title=title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("pod", "outcome", "reason", "node"):
        answer_table.add_column(heading)
    answer_table.add_column("ms", justify="right", min_width=5)
    for answer in answers:
        outcome, reason, node = answer.reported
        pod = Text.assemble(answer.name, (f"\n  {answer.scene['situation']}", "dim"))
        style = "bold red" if answer.mismatch else COLORS[outcome]
        answer_table.add_row(pod, Text(outcome, style), reason, node, f"{answer.milliseconds:.1f}")
    return answer_table


def diff_lines(answer: Answer) -> Iterator[Text]:
    """Yield a unified diff of the pod's YAML before and after the patch."""
    old, new = (yaml.safe_dump(pod, sort_keys=False, width=100).splitlines() for pod in (answer.before, answer.after))
    for line in difflib.unified_diff(old, new, "as KubeVirt creates it", "with the webhook's patch", lineterm="", n=2):
        yield Text(line, COLORS.get(line[0], ""))


def print_report(console: Console, cluster: str) -> None:
    """Print which VMs of the example are apart from their storage."""
    options = ["--snapshot", cluster, "--snapshot", str(EXAMPLES / "fleet.yaml"), "-n", "shop"]
    console.print("\nWhich VMs of the shop are apart from their storage?", style="bold")
    shown = [
        str(Path(each).relative_to(EXAMPLES.parent)) if each.startswith(str(EXAMPLES)) else each for each in options
    ]
    console.print(f"$ {COMMAND} report {' '.join(shown)}")
    environment = {**os.environ, "COLUMNS": str(console.width)}
    report = subprocess.run(
        [PROGRAM, "report", *options], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    console.out(report.stdout, end="", highlight=False)


def main(cluster: str) -> str | None:
    """Run the scenes. Return one line for each unexpected answer, None if there is none."""
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log, running_server(cluster, log) as server:
        host, _, port = server["https"].rpartition(":")
        tls_context = ssl.create_default_context(cadata=server["ca"])
        with closing(
            http.client.HTTPSConnection(host, int(port), timeout=RESPONSE_TIMEOUT, context=tls_context)
        ) as connection:
            connection.connect()  # one handshake for all reviews: an API server also reuses its connections
            answers = [
                send_review(connection, scene) for scene in yaml.safe_load((EXAMPLES / "scenes.yaml").read_text())
            ]
    console.print(table(answers))
    for answer in answers:
        if answer.outcome == "preferred" and answer.reported[1] != "CoScheduled":
            decision = answer.after["metadata"]["annotations"]["kubevirt-scheduler/decision"]
            console.print(Text.assemble((f"Why {answer.name} is not pinned: ", "bold"), decision, "\n"))
    console.print(f"The patch of the first pod, {answers[0].name}:", style="bold")
    console.print(*diff_lines(answers[0]), sep="\n")
    console.print("\nTo explain a decision, run:", style="bold")
    console.print(EXPLAIN_COMMAND)
    print_report(console, cluster)
    return "\n".join(answer.mismatch for answer in answers if answer.mismatch) or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else str(EXAMPLES / "cluster.yaml")))
