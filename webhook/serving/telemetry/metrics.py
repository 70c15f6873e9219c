"""Prometheus metrics. Every label value that is known in advance is exported from the start, with value 0."""

import platform
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from webhook import __version__
from webhook.placement.guard.feasibility import GUARD_REASONS
from webhook.placement.reasons import Decision, Mode, Outcome, Reason, Subject
from webhook.placement.settings import Action

PREFIX = "kubevirt_scheduler_"
CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

CODES = (200, 400, 404, 405, 408, 413, 415, 431, 500, 503)

# A decision takes 0.2 ms, and the API server waits 10 s by default: everything slower than 1 s is just too slow.
BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds
STEERING_REASONS = (Reason.NOT_FROM_LONGHORN, Reason.STEERING_OFF, Reason.NO_CONSUMER, Reason.NODE_AVOIDED)
# A share-manager pod has these reasons besides those of the guard.
_OF_SHARE_MANAGERS = (
    Reason.ALREADY_BOUND,
    Reason.ALREADY_INJECTED,
    *STEERING_REASONS,
    Reason.CACHE_NOT_SYNCED,
    Reason.DEADLINE_EXCEEDED,
    Reason.INTERNAL_ERROR,
)
# Only claims, Pending VMs or running VMs have these.
_OF_NO_DECISION = (
    Reason.CLAIM_NOT_FOUND,
    Reason.CLAIM_NOT_RWX,
    Reason.CLAIM_NOT_BOUND,
    Reason.NOT_LONGHORN,
    Reason.NO_SHARE_MANAGER_EVER,
    Reason.SHARE_MANAGER_MOVED,
    Reason.PENDING_TOO_LONG,
    Reason.NOT_SCHEDULED,
    Reason.NOT_REVIEWED,
    Reason.SCHEDULED_ELSEWHERE,
    Reason.VOTES_CHANGED,
)
Labels = tuple[Subject, Outcome, Reason, Mode]


def possible_outcomes(reason: Reason) -> tuple[Outcome, ...]:
    """Return the outcomes that a decision with this reason can have: none if only claims or releases have it."""
    if reason is Reason.CO_SCHEDULED:
        return Outcome.PINNED, Outcome.PREFERRED
    if reason in (*GUARD_REASONS, Reason.SHARE_MANAGER_STARTING) and reason is not Reason.NODE_NOT_FOUND:
        return Outcome.PREFERRED, Outcome.UNCHANGED  # a deleted node is not even preferred
    return () if reason in _OF_NO_DECISION else (Outcome.UNCHANGED,)


def possible_labels() -> Iterator[Labels]:
    """Yield the labels of each decision that can occur. A share-manager pod is never pinned."""
    for reason in Reason:
        for outcome in possible_outcomes(reason):
            if reason not in STEERING_REASONS:
                yield Subject.VM, outcome, reason, Mode.REQUIRED
                if outcome is not Outcome.PINNED:
                    yield Subject.VM, outcome, reason, Mode.PREFERRED
    yield Subject.SHARE_MANAGER, Outcome.PREFERRED, Reason.CO_SCHEDULED, Mode.PREFERRED
    for reason in (*GUARD_REASONS, *_OF_SHARE_MANAGERS):
        yield Subject.SHARE_MANAGER, Outcome.UNCHANGED, reason, Mode.PREFERRED


def _filled(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    values: float | Mapping[Any, float],
    *labels: str,
) -> Metric:
    """Return a metric: one value, or one for each value of a label or of several labels."""
    family = kind(PREFIX + name, text, labels=labels)
    for key, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric([key] if isinstance(key, str) else list(key), float(value))
    return family


gauge = partial(_filled, GaugeMetricFamily)
counter = partial(_filled, CounterMetricFamily)


class Metrics(Collector):
    """The metrics of this process, in their own registry. One thread counts, in plain dicts, and any may read.

    A counter of `prometheus_client` takes a lock: that of a review took 350 of its 12,300 bytecode instructions.
    """

    def __init__(self, action: Action = Action.INJECT, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._page = b""
        self._rendered_at = float("-inf")
        self._action = action
        self._decisions = Counter(dict.fromkeys(possible_labels(), 0))
        self._responses = Counter(dict.fromkeys(CODES, 0))
        self._passed_over = 0
        self._durations = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self._registry = CollectorRegistry()
        Info(f"{PREFIX}build", "The version of the webhook and of Python.", registry=self._registry).info(
            {"version": __version__, "python": platform.python_version()}
        )
        ProcessCollector(registry=self._registry)
        self._sources: list[Callable[[], Iterable[Metric]]] = [self._counted]
        self._registry.register(self)

    def _counted(self) -> Iterator[Metric]:
        text = "Decisions on created pods, by outcome and reason. Excludes dry runs."
        decisions = {(*labels, self._action): number for labels, number in self._decisions.copy().items()}
        yield counter("decisions", text, decisions, "subject", "outcome", "reason", "mode", "action")
        text = "Time from reading a request to the response, without the network. Includes dry runs."
        buckets = list(zip([*map(str, BUCKETS), "+Inf"], accumulate(self._durations), strict=True))
        yield HistogramMetricFamily(f"{PREFIX}decision_duration_seconds", text, buckets, self._seconds)
        text = (
            "Decisions that passed over a pod of another namespace, because its constraints cost too much to evaluate."
        )
        yield counter("passed_over", text, self._passed_over)
        responses = {str(code): number for code, number in self._responses.copy().items()}
        yield counter("responses", "Responses of the TLS port, by HTTP status.", responses, "code")

    def count_decision(self, decision: Decision, subject: Subject, seconds: float, *, dry_run: bool = False) -> None:
        """Count a decision and its duration in seconds."""
        self._durations[bisect_left(BUCKETS, seconds)] += 1
        self._seconds += seconds
        self._passed_over += decision.passed_over
        if not dry_run:
            mode = decision.mode if subject is Subject.VM else Mode.PREFERRED
            self._decisions[subject, decision.outcome, decision.reason, mode] += 1

    def count_response(self, code: int) -> None:
        """Count a response by its HTTP status."""
        self._responses[int(code)] += 1

    def add(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Add metrics that are read at each scrape."""
        self._sources.append(collect)

    def collect(self) -> Iterator[Metric]:
        """Read the current values, for the registry. Without `describe`, it reads none before the first scrape."""
        for source in self._sources:
            yield from source()

    def page(self) -> bytes:
        """Return `exposition`, rendered at most once a second, so that a flood of scrapes delays no probe."""
        if self._clock() - self._rendered_at >= 1:
            self._page = self.exposition()
            self._rendered_at = self._clock()
        return self._page

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)
