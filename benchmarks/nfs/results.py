"""Results of the NFS benchmark, by workload and network, and their ratios to the undelayed ones of the same run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import product

from .workload import Result, Workload, best

ROUND_TRIPS = [0.0, 0.0001, 0.00025, 0.0005, 0.001]  # seconds
BANDWIDTHS = {"no limit": None, "10 Gbit/s": 10e9, "1 Gbit/s": 1e9}
DISKS = [0.0, 0.0005, 0.002]  # seconds that an operation of the disk takes longer than one in memory
NO_LIMIT = next(iter(BANDWIDTHS))


@dataclass(frozen=True, slots=True)
class Network:
    """A simulated network: a round-trip time in seconds, and the name of a bandwidth."""

    round_trip: float
    bandwidth: str = NO_LIMIT


NETWORKS = [Network(round_trip, bandwidth) for bandwidth, round_trip in product(BANDWIDTHS, ROUND_TRIPS)]
UNDELAYED = Network(0.0)


class Results:
    """The results of all rounds, by workload and network."""

    def __init__(self) -> None:
        self.direct: list[Result] = []
        self._found: dict[tuple[Workload, Network], list[Result]] = defaultdict(list)

    def add(self, workload: Workload, network: Network, result: Result) -> None:
        """Add the result of one round."""
        self._found[workload, network].append(result)

    def result(self, workload: Workload, network: Network) -> Result:
        """Return the best of the rounds."""
        return best(self._found[workload, network])

    def ratio(self, workload: Workload, network: Network) -> float:
        """Return the operations per second as a share of the undelayed ones."""
        return self.result(workload, network).per_second / self.result(workload, UNDELAYED).per_second

    def added(self, workload: Workload, network: Network) -> float:
        """Return by how many seconds the median latency exceeds the undelayed one."""
        return self.result(workload, network).p50 - self.result(workload, UNDELAYED).p50

    def to_json(self) -> list[dict[str, object]]:
        """Return each result of each round."""
        return [
            {"workload": asdict(workload), "network": asdict(network), "rounds": [asdict(each) for each in rounds]}
            for (workload, network), rounds in self._found.items()
        ]
