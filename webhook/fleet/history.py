"""The number of VMs that were apart in the last day, from the metric of the webhook's replicas."""

import math
from collections.abc import Iterable

from webhook.placement.objects.fields import JsonObject

# Each replica exports the whole fleet, hence `max`.
QUERY = 'sum(max by (opted_in) (kubevirt_scheduler_vms{state="Apart"}))'
DAY = 24 * 60 * 60  # seconds
STEP = 15 * 60


def read_history(samples: Iterable[JsonObject]) -> list[tuple[int, int]]:
    """Return the seconds since the epoch and the number of VMs of each point. Ignores what isn't of this query."""
    points = (value for sample in samples for value in _values(sample))
    return [(int(time), int(count)) for time, count in points if math.isfinite(time) and math.isfinite(count)]


def _values(sample: JsonObject) -> Iterable[tuple[float, float]]:
    values = sample.get("values")
    for value in values if isinstance(values, list) else ():
        try:
            yield float(value[0]), float(value[1])
        except (ValueError, TypeError, IndexError, KeyError):
            continue
