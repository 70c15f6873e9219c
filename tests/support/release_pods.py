"""The pods of the chart's release, as a kubelet would run them: the replicas, and the pod of `helm test`."""

from __future__ import annotations

from itertools import cycle

from tests.support.controlplane.api import ApiError
from tests.support.helm_chart import NAMESPACE
from tests.support.helm_release import Release, Replicas, run_test_pod
from tests.support.scenario import Scenario


class ReleasePods:
    """Local processes stand in for the pods. Call `reconcile` again and again, and `stop` at the end."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.plane = scenario, scenario.plane
        self.release = Release(scenario.plane, NAMESPACE)
        self._replicas = Replicas(self.release)
        self._test_pod = f"/api/v1/namespaces/{NAMESPACE}/pods/{self.release.fullname}-test"

    def reconcile(self) -> None:
        """Start and stop replicas as the Deployment requires, if there is one, and run a pending pod of `helm test`."""
        try:
            self._replicas.reconcile()
            self._route_plain_port()
        except ApiError as error:
            if error.reason != "NotFound":
                raise
            if self.plane.find(self.release.deployment_path) is None:
                self.stop()
            return
        pod = self.plane.find(self._test_pod)
        if pod and pod["status"].get("phase") == "Running":
            run_test_pod(self.release, pod)

    def stop(self) -> None:
        self._replicas.__exit__()
        self._replicas = Replicas(self.release)

    def _route_plain_port(self) -> None:
        """Connect the addresses of the Deployment's pods to the replicas, so that `doctor` reads /readyz."""
        labels = "labelSelector=app.kubernetes.io/component=webhook"
        pods = self.plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?{labels}")["items"]
        addresses = sorted(pod["status"]["podIP"] for pod in pods if "podIP" in pod["status"])
        for address, replica in zip(addresses, cycle(self._replicas.running), strict=False):
            self.plane.route(address, 8080, replica.plain_address)
