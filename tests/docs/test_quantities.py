"""Each time, size and share in the users' docs is a number of the code, of another program, or a measured one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from certs.authority import LIFETIME
from certs.controller import PASS_INTERVAL
from certs.rotation import RENEWAL_DIVISOR
from tests.support.helm_chart import default_value, find_one, render
from tests.support.paths import DOCS, ROOT
from webhook.catalog.releases import RELEASE_SECONDS
from webhook.catalog.reservations import RESERVATION_SECONDS
from webhook.cluster.election import LEASE_DURATION
from webhook.cluster.events import MESSAGE_SIZE, WRITES_PER_SECOND
from webhook.cluster.fleet_counts import UNDECIDED_SECONDS
from webhook.cluster.live_catalog import STALE_SECONDS
from webhook.commands.benchmark import plan
from webhook.commands.benchmark.probe import FILE_SIZE
from webhook.commands.benchmark.run import LONGEST_RUN
from webhook.commands.doctor.products import CROWDED
from webhook.commands.recolocate.run import PATIENCE
from webhook.fleet.release import PENDING_LIMIT, UNSCHEDULED_AFTER
from webhook.fleet.relocation.run import BLOCK_PATIENCE, QUEUE_PATIENCE
from webhook.fleet.traffic import WINDOW
from webhook.placement.affinity import MAX_TERMS
from webhook.placement.guard.comparison_limit import MAX_COMPARISONS
from webhook.placement.guard.feasibility import STALE_MINUTES
from webhook.placement.guard.pins import MAX_AGE
from webhook.placement.objects.pod import MAX_DETAILS
from webhook.placement.objects.resources import MAX_CONTAINERS, MAX_QUANTITIES
from webhook.placement.settings import Settings
from webhook.serving.review.admission_review import MAX_ITEMS, REVIEW_LIMIT
from webhook.serving.worker.loop import STALLED_AFTER

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

UNITS = "s|ms|seconds?|minutes?|hours?|days?|KiB|MiB|GiB|KB|MB|%|times|Events"
QUANTITY = re.compile(rf"(?<![\w.#/-])\d[\d,.]*\s?(?:{UNITS})(?!\w)|\b(?:an|one) hour|\b(?:five|ten) minutes")
# The numbers of these pages are measured, or calculated from published ones: tests/docs/test_commands.py.
MEASURED_PAGES = {"figures.md", "network-hop.md"}
FIVE_MINUTES = 300
KIB, MIB = 1024, 1024 * 1024


def rules() -> str:
    """Return the chart's alerts."""
    return str(find_one(render({"prometheusRule": {"enabled": True}}), "PrometheusRule"))


# Of another program, by its documentation or source, which the page links or names.
ELSEWHERE = True
# Measured by a benchmark or a recorded trail.
MEASURED = True

# For each page: parts of its text with a quantity, and whether it is true.
TABLE: dict[str, dict[str, bool | Callable[[], bool]]] = {
    "README.md": {
        "1.05 to 1.2 times before": MEASURED,
        "with 0.25 ms between nodes": MEASURED,
        "40 % of a local one's": MEASURED,
        "69 to 91 % on v1": MEASURED,
        "up to ten minutes": MEASURED,
    },
    "explanation/costs.md": {
        "takes over after about 15 s": LEASE_DURATION == 15,
        "After five minutes without news": STALE_SECONDS == FIVE_MINUTES,
        "deletes the pod after 30 s": Settings().release_after == 30,
        "or after five minutes if the guard": PENDING_LIMIT == FIVE_MINUTES,
        "12 to 15 s later": ELSEWHERE,
        "59 s, then 121 s": ELSEWHERE,
        "nodes of 512 MB in user-mode Linux": MEASURED,
        "For five minutes no write completed": MEASURED,
        "the longest write took 25 s through the page cache and 19 s with O_DIRECT": MEASURED,
    },
    "explanation/how-it-decides.md": {
        "For an hour, the webhook only prefers": RELEASE_SECONDS == 3600,
        "`Unschedulable` for 30 s (`release.after`)": default_value(("release", "after")) == 30,
        "or five minutes have passed": PENDING_LIMIT == FIVE_MINUTES,
        "waits for the five minutes": PENDING_LIMIT == FIVE_MINUTES,
    },
    "explanation/threat-model.md": {
        "512 KiB, 64 required node affinity terms, 64 containers, 512 quantities": (
            (REVIEW_LIMIT, MAX_TERMS, MAX_CONTAINERS, MAX_QUANTITIES) == (512 * KIB, 64, 64, 512)
        ),
        "5,000 comparisons (about 4 ms), and 16 KiB of memory": ((MAX_COMPARISONS, MAX_DETAILS) == (5000, 16 * KIB)),
        "a review over 512 KiB or 10,000 items": (REVIEW_LIMIT, MAX_ITEMS) == (512 * KIB, 10_000),
        "controls it, and for five minutes at most": MAX_AGE == FIVE_MINUTES,
        "quota allows on a node, for five minutes": MAX_AGE == FIVE_MINUTES,
        "wait five minutes for the release": PENDING_LIMIT == FIVE_MINUTES,
        "has expired, after 30 days at most": LIFETIME.days == 30,
        "up to 20 Events a second": WRITES_PER_SECOND == 20 and RESERVATION_SECONDS == 10,
    },
    "guides/certificates.md": {
        "valid for 30 days and renewed when 10 are left": (LIFETIME.days, RENEWAL_DIVISOR) == (30, 3),
        "can't read or update it for ten days": (LIFETIME.days, RENEWAL_DIVISOR) == (30, 3),
        "retries every 3 seconds": PASS_INTERVAL == 3,
        "(read again within five minutes)": ELSEWHERE,
        "five minutes later, replace": ELSEWHERE,
    },
    "guides/recolocate.md": {
        "60 seconds": BLOCK_PATIENCE == 60,
        "blocks it for five minutes": QUEUE_PATIENCE == FIVE_MINUTES,
        "retries for five minutes": PATIENCE == FIVE_MINUTES,
    },
    "guides/troubleshooting.md": {
        "for an hour, the decision at the VM's start": ELSEWHERE,
        "up to 3 s late": default_value(("webhook", "timeoutSeconds")) == 3,
    },
    "reference/commands.md": {
        "within five minutes": LONGEST_RUN == FIVE_MINUTES,
        "a claim of 1 GiB": '"1Gi"' in Path(plan.__file__).read_text(),
        "a file of 128 MiB": FILE_SIZE == 128 * MIB,
    },
    "reference/doctor.md": {
        "or VMIs for 5 minutes pins no VM": STALE_MINUTES == 5,
        "with over 90 % of their `pods`": CROWDED == 0.9,
    },
    "reference/reasons.md": {
        "pods or VMIs for five minutes": STALE_SECONDS == FIVE_MINUTES,
        "unschedulable for five minutes": PENDING_LIMIT == FIVE_MINUTES,
        "evaluated the pod for 30 s": UNSCHEDULED_AFTER == 30,
    },
    "reference/report.md": {"the last 10 minutes": WINDOW == "10m"},
    "reference/rights.md": {
        "after five minutes pin no VM": STALE_SECONDS == FIVE_MINUTES,
        "a message of at most 1 KiB": MESSAGE_SIZE == KIB,
        "false Events of 1 KiB": MESSAGE_SIZE == KIB,
    },
    "reference/versions.md": {"32 of 36 times": MEASURED, "about 30 s": ELSEWHERE},
    "runbooks/README.md": {
        "in an hour, at least five": lambda: "[1h]" in rules(),
        "0.1 s, or a turn of the `event-loop` over 0.5 s": lambda: "loop_longest_turn_seconds" in rules(),
        "over 20 failed passes in 15 minutes": lambda: "[15m])) > 20" in rules() or "[15m]) > 20" in rules(),
        "started within an hour without a decision": UNDECIDED_SECONDS == 3600,
        "wait for an hour, or restart": UNDECIDED_SECONDS == 3600,
        "After 10 seconds, the probes fail": STALLED_AFTER == 10,
        "6 hours: over 10 %": default_value(("prometheusRule", "thresholds", "apart")) == 0.1,
    },
}


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name of each users' page, and its prose on one line."""
    folders = "guides", "reference", "explanation", "runbooks"
    files = [ROOT / "README.md", *(file for folder in folders for file in sorted((DOCS / folder).glob("*.md")))]
    for file in files:
        if file.name not in MEASURED_PAGES:
            text = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
            yield str(file.relative_to(ROOT if file.parent == ROOT else DOCS)), " ".join(text.split())


def unexplained(page: str, text: str) -> Iterator[str]:
    """Yield the quantities of a page that no part of the table covers."""
    parts = [*TABLE.get(page, {}), *alert_parts(page)]
    spans = [match.span() for part in parts for match in re.finditer(re.escape(part), text)]
    for quantity in QUANTITY.finditer(text):
        if not any(start <= quantity.start() and quantity.end() <= end for start, end in spans):
            yield text[max(0, quantity.start() - 40) : quantity.end() + 20]


def alert_parts(page: str) -> list[str]:
    """Return what the table of the runbooks says of the time for which each alert's condition holds."""
    if page != "runbooks/README.md":
        return []
    values = {"prometheusRule": {"enabled": True}, "recolocate": {"schedule": "0 2 * * *"}}
    groups = find_one(render(values), "PrometheusRule")["spec"]["groups"]
    times = {(rule["alert"], rule.get("for", "")) for group in groups for rule in group["rules"] if "alert" in rule}
    units = {"m": "minutes", "h": "hours"}
    return [
        f"[{alert}](#{alert.lower()}) | {severity} | {time[:-1]} {units[time[-1]]}: "
        for alert, time in times
        if time
        for severity in ("critical", "warning", "info", "critical, warning")
    ]


@pytest.mark.parametrize(("page", "text"), [*pages()], ids=[page for page, _ in pages()])
def test_each_quantity_of_a_page_is_in_the_table(page: str, text: str) -> None:
    assert list(unexplained(page, text)) == []
    assert [part for part in TABLE.get(page, {}) if part not in text] == []


def test_each_quantity_in_the_table_is_true() -> None:
    assert [
        (page, part)
        for page, parts in TABLE.items()
        for part, is_true in parts.items()
        if not (is_true() if callable(is_true) else is_true)
    ] == []
