"""The metrics of the fleet: VMs by state, from the caches of this replica."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from webhook.cluster.fleet_counts import Counts
from webhook.placement.fleet import State

RUNNING_STATES = (State.TOGETHER, State.APART, State.UNSERVED, State.NOT_CONCERNED)


class FleetCollector(Collector):
    """Exports the VMs by state and opt-in, and by node and state. Exports nothing before the caches are synced."""

    def __init__(self, counts: Callable[[], Counts | None]) -> None:
        self._counts = counts

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that the registration doesn't count the fleet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Count the fleet, or return a recent count."""
        counts = self._counts()
        if counts is None:
            return
        text = "VMs by state. Each replica exports its own view: aggregate with max, not with sum."
        vms = GaugeMetricFamily("kubevirt_scheduler_vms", text, labels=["state", "opted_in"])
        for state in State:
            for opted_in in (True, False):
                vms.add_metric([state, str(opted_in).lower()], counts.vms[state, opted_in])
        yield vms
        text = "VMs on each node by state. Each replica exports its own view: aggregate with max, not with sum."
        by_node = GaugeMetricFamily("kubevirt_scheduler_node_vms", text, labels=["node", "state"])
        for node in sorted({node for node, _ in counts.by_node}):
            for state in RUNNING_STATES:
                by_node.add_metric([node, state], counts.by_node[node, state])
        yield by_node
