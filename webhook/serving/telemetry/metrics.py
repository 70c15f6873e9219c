"""Prometheus metrics. Every label value that is known in advance is exported from the start, with value 0."""

import platform
import time
from collections.abc import Callable, Iterable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from webhook import __version__
from webhook.placement.reasons import Decision, Subject
from webhook.placement.settings import Action
from webhook.serving.telemetry.decision_metrics import DecisionMetrics

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

CODES = (200, 400, 404, 405, 408, 413, 415, 500, 503)


class _OnScrape(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read the current values."""
        return self._read()

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: a reading may start a new interval, or count the fleet."""
        return ()


class Metrics:
    """The metrics of this process, in their own registry."""

    def __init__(self, action: Action = Action.INJECT, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._page, self._rendered_at = clock, b"", float("-inf")
        # The `_created` series would double the number of series, and nothing reads them.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the function has no annotations
        self._registry = CollectorRegistry()
        self._decisions = DecisionMetrics(self._registry, action)
        self._responses = Counter(
            "kubevirt_scheduler_responses_total",
            "Responses of the TLS port, by HTTP status.",
            ["code"],
            registry=self._registry,
        )
        self.in_flight = Gauge("kubevirt_scheduler_requests_in_flight", "Reviews in progress.", registry=self._registry)
        Info("kubevirt_scheduler_build", "The version of the webhook and of Python.", registry=self._registry).info(
            {"version": __version__, "python": platform.python_version()}
        )
        ProcessCollector(registry=self._registry)
        # Export known label values from the start. A dict lookup is also faster than `labels()`.
        self._by_code = {code: self._responses.labels(code) for code in CODES}

    def count_decision(self, decision: Decision, subject: Subject, seconds: float, *, dry_run: bool = False) -> None:
        """Count a decision and its duration in seconds."""
        self._decisions.count(decision, subject, seconds, dry_run=dry_run)

    def count_response(self, code: int) -> None:
        """Count a response by its HTTP status."""
        (self._by_code.get(code) or self._responses.labels(code)).inc()

    def add(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Add metrics that are read at each scrape."""
        self._registry.register(_OnScrape(collect))

    def page(self) -> bytes:
        """Return `exposition`, rendered at most once a second, so that a flood of scrapes delays no probe."""
        if self._clock() - self._rendered_at >= 1:
            self._page, self._rendered_at = self.exposition(), self._clock()
        return self._page

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)
