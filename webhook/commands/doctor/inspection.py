"""The cluster as the checks read it, and the result of a check: its level, the finding, and the advice."""

from enum import StrEnum
from functools import cache, partial

from msgspec import Struct

from webhook.catalog.inventory import Inventory
from webhook.cluster.client import ClusterClient
from webhook.placement.settings import Settings
from webhook.reading.live import read_inventory


class Level(StrEnum):
    """How serious a finding is. A failure makes `doctor` fail, and so does a check without a result."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"  # the user lacks the right for the check, or the API server fails


class Result(Struct, frozen=True):
    """A finding of a check."""

    level: Level
    finding: str
    advice: str = ""  # one line; empty if no action is needed


# A result without a problem, a problem that limits the webhook, and one that stops it.
ok, warning, failure = (partial(Result, level) for level in (Level.OK, Level.WARNING, Level.FAILURE))


def listed(names: list[str]) -> str:
    """Return the first five names, and how many more there are."""
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{rest}"


class Inspection(Struct, frozen=True, eq=False):  # each one is a key of the caches of what several checks read
    """The cluster to check. Each check raises Denied, or BadInput if the API server can't be reached."""

    cluster: ClusterClient
    settings: Settings
    configuration: str  # the name of the MutatingWebhookConfiguration; empty if it isn't known
    namespace: str  # where a VM's pod is created as a dry run, or where you will install the chart


@cache
def inventory(inspection: Inspection) -> Inventory:
    """Read what `report` reads."""
    return read_inventory(inspection.cluster, inspection.settings)
