"""Some replicas of the webhook behind one Service, and the ways in which a Service distributes the calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.support.controlplane.plane import ControlPlane
from tests.support.webhook_process import NAMESPACE, Webhook

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


class Replicas:
    """`with Replicas(...)` starts and registers the replicas; each new connection goes to the next one.

    The replicas share a certificate and the settings. With `lease`, one of them releases pins; `kubeconfig` needs the
    rights to do so.
    """

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        kubeconfig: Path,
        count: int,
        settings: dict[str, str] | None = None,
        *,
        lease: bool = False,
        share_managers: bool = True,
        timeout: int = 10,
    ) -> None:
        self._plane, self._name = plane, name
        self._share_managers, self._timeout = share_managers, timeout
        settings = settings or {}
        arguments = (f"--lease={NAMESPACE}/{name}",) if lease else ()
        self._lease = lease
        self.first = Webhook(plane, name, kubeconfig, settings, arguments=arguments)
        others = [
            Webhook(plane, f"{name}-{number}", kubeconfig, settings, tls=self.first.tls, arguments=arguments)
            for number in range(1, count)
        ]
        self.all = [self.first, *others]
        self._stack = ExitStack()

    def __enter__(self) -> Replicas:
        with self._stack:
            if self._lease:
                self._plane.request("POST", LEASES, {"metadata": {"name": self._name}})
                # Left behind, it would block a Helm release of this name.
                self._stack.callback(self._plane.request, "DELETE", f"{LEASES}/{self._name}")
            for each in self.all:
                self._stack.callback(each.stop)
                each.process.start()
            for each in self.all:
                each.process.wait_until_healthy()
            self._stack.callback(self.first.unregister)
            self.first.register(self._share_managers, self._timeout)
            self.route_per_connection()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def route_per_connection(self) -> None:
        """Send each new connection of the API server to the next replica, as kube-proxy does without an affinity.

        The API server opens as many connections as it has calls at the same time, and reuses the newest idle one.
        """
        self._route(*self.all)

    def route_to_one(self) -> None:
        """Send all calls to the first replica, as `sessionAffinity: ClientIP` does with those of one API server."""
        self._route(self.first)

    def register_one(self) -> None:
        """Like `route_to_one`, but for good, and without the proxy that stands in for the Service."""
        self.first.unregister()
        self.first.register(self._share_managers, self._timeout, direct=True)

    def wait_until_all(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition, which calls the webhook, is true whichever replica gets the call.

        After that, calls are routed per connection.
        """
        for replica in self.all:
            self._route(replica)
            self._plane.wait(condition, 20, f"{what}, by {replica.name}")
        self.route_per_connection()

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples of all replicas."""
        return sum(each.metric(name) for each in self.all)

    def _route(self, *replicas: Webhook) -> None:
        """Route new connections, and close the idle ones. No call may be in flight."""
        cluster_ip = self._plane.route_service(NAMESPACE, self._name, *(each.address for each in replicas))
        self._plane.close_connections(cluster_ip, 443)
