"""Clocks that stand still until a test advances them: in seconds, and in dates for certificates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


class FakeClock:
    """A clock in seconds. A test sets `now`; with `step`, each reading advances the clock by that many seconds."""

    def __init__(self, now: float = 1000.0, step: float = 0.0) -> None:
        self.now, self.step = now, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class CertificateClock:
    """A clock that stands still until a test advances it."""

    def __init__(self, start: datetime = START) -> None:
        self.time = start

    def __call__(self) -> datetime:
        return self.time

    def advance(self, by: timedelta) -> None:
        self.time += by
