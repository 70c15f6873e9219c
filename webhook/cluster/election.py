"""Elect one replica with a Lease. Only the elected replica deletes pods."""

import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import mapping, text

# Seconds, as in client-go. The others wait for LEASE_DURATION after they saw a renewal. The leader stops after
# RENEW_DEADLINE, so that a request that it has just sent ends before another replica leads.
LEASE_DURATION, RENEW_DEADLINE, RETRY_INTERVAL = 15, 10.0, 2.0
REQUEST_TIMEOUT = 3.0  # seconds
MAX_TRANSITIONS = 2**31  # the API server accepts no larger number

log = logging.getLogger("webhook.election")


class Election:
    """Acquires and renews one Lease. A thread executes `run`; any thread may call `leads`.

    Each write sends the resource version that was read, so only one of several replicas succeeds. `clock` returns
    monotonic seconds: no replica compares its wall clock with the times in the Lease.
    """

    def __init__(self, cluster: ClusterClient, lease: Key, clock: Callable[[], float] = time.monotonic) -> None:
        namespace, name = lease
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        # Inside a pod, the hostname is the pod's name. A restarted container must not take over its own old Lease.
        self.identity = f"{os.uname().nodename}_{uuid4()}"
        self._cluster, self._clock = cluster, clock
        self._leads_until = float("-inf")
        self._acquired = ""  # when this replica became the leader, by its wall clock
        self._observed: Any = None
        self._observed_at = float("-inf")
        self._last_error = ""

    def leads(self) -> bool:
        """Return whether this replica is the leader now."""
        return self._clock() < self._leads_until

    def run(self, stop: threading.Event) -> None:
        """Take part in the election until `stop` is set. Another replica leads LEASE_DURATION later."""
        while not stop.is_set():
            self.step()
            stop.wait(RETRY_INTERVAL)

    def step(self) -> None:
        """Renew the Lease, or acquire it if nobody holds it. Never raises."""
        led = self.leads()
        try:
            self._try_to_lead()
            self._last_error = ""
        except ClusterError as error:
            # After a conflict another replica leads: that is no problem.
            if error.code != 409 and str(error) != self._last_error:
                fields = {"resource": "leases", "code": error.code, "error": str(error)}
                log.warning("lease not renewed", extra=fields)
            self._last_error = str(error)
        except Exception:
            log.exception("unexpected error", extra={"resource": "leases"})
        if self.leads() is not led:
            log.info(
                "became leader" if self.leads() else "stopped leading", extra={"lease": self._path.rpartition("/")[2]}
            )

    def _try_to_lead(self) -> None:
        started = self._clock()
        lease = self._cluster.get(self._path, REQUEST_TIMEOUT)
        if lease is None:
            raise ClusterError(404, f"{self._path} not found, so no replica releases pins")
        spec = mapping(lease, "spec")
        if spec != self._observed:
            self._observed = spec
            self._observed_at = self._clock()
        holder = text(spec, "holderIdentity")
        if holder not in ("", self.identity) and self._clock() < self._observed_at + LEASE_DURATION:
            self._leads_until = float("-inf")
            return
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        transitions = spec.get("leaseTransitions")
        transitions = transitions if isinstance(transitions, int) else 0
        if holder != self.identity or not self._acquired:
            self._acquired = now
            transitions += bool(holder)
        # Nothing else stays of what another client wrote. `kubectl describe lease` shows a leader that changes often.
        mine = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_DURATION,
            "acquireTime": self._acquired,
            "renewTime": now,
            "leaseTransitions": transitions % MAX_TRANSITIONS,
        }
        self._cluster.send("PUT", self._path, lease | {"spec": mine}, REQUEST_TIMEOUT)
        self._leads_until = started + RENEW_DEADLINE
