"""An API server for the certificates' tests: two objects with resource versions, and whatever can go wrong with them.

Time is a clock that the test turns. Before each call the server does what it was told to (`between`), be it that
another replica is faster; it refuses or breaks off at the call that was chosen (`faults`).
"""

import base64
import json
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

from certs.cluster import CONFIGURATIONS, ApiError

Object = dict[str, Any]

NAMESPACE, NAME = "kubevirt-scheduler", "kubevirt-scheduler-tls"
CONFIGURATION = "kubevirt-scheduler"
SECRET_PATH = f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}"
CONFIGURATION_PATH = f"{CONFIGURATIONS}/{CONFIGURATION}"
NAMES = ("webhook.kubevirt-scheduler.svc", "webhook.kubevirt-scheduler.svc.cluster.local")
START = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is turned."""

    def __init__(self, start: datetime = START) -> None:
        self.time = start

    def __call__(self) -> datetime:
        return self.time

    def turn(self, by: timedelta) -> None:
        self.time += by


class Crash(BaseException):
    """The process ends here, as with kill -9."""


def secret() -> Object:
    """The Secret as the chart makes it."""
    metadata = {"namespace": NAMESPACE, "name": NAME, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}


def configuration() -> Object:
    """The configuration as the chart makes it: two webhooks, and no `caBundle`."""
    service = {"namespace": NAMESPACE, "name": "webhook", "path": "/mutate", "port": 443}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION, "annotations": {"a": "b"}},
        "webhooks": [
            {"name": f"{kind}.kubevirt-scheduler", "clientConfig": {"service": service}, "failurePolicy": "Ignore"}
            for kind in ("vms", "share-managers")
        ],
    }


class TwoObjects:
    """Speaks `get` and `send` as an API server does, compare-and-swap included."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.version = 100
        self.calls: list[tuple[str, str]] = []
        self.lost = 0
        self.between: Callable[[str, str], None] = lambda _method, _path: None
        self.before: dict[int, BaseException] = {}
        self.after: dict[int, BaseException] = {}
        for path, content in ((SECRET_PATH, secret()), (CONFIGURATION_PATH, configuration())):
            self.put(path, content)

    def put(self, path: str, content: Object) -> None:
        self.version += 1
        kept = deepcopy(content)
        kept["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = kept

    def get(self, path: str, timeout: float = 60.0) -> bytes | None:
        assert timeout <= 5
        with_faults = self._called("GET", path)
        found = self.objects.get(path)
        with_faults()
        return None if found is None else json.dumps(found).encode()

    def send(self, method: str, path: str, body: Object, timeout: float) -> Object:
        assert (method, timeout <= 5) == ("PUT", True)
        with_faults = self._called(method, path)
        if path not in self.objects:
            raise ApiError(404, f"{path} not found")
        if body["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
            self.lost += 1
            raise ApiError(409, "the object has been modified; please apply your changes to the latest version")
        self.put(path, json.loads(json.dumps(body)))
        with_faults()
        return deepcopy(self.objects[path])

    def _called(self, method: str, path: str) -> Callable[[], None]:
        self.between(method, path)
        number = len(self.calls)
        self.calls.append((method, path))
        if number in self.before:
            raise self.before.pop(number)

        def afterwards() -> None:
            if number in self.after:
                raise self.after.pop(number)

        return afterwards

    @property
    def secret(self) -> Object:
        return self.objects[SECRET_PATH]

    @property
    def configuration(self) -> Object:
        return self.objects[CONFIGURATION_PATH]

    @property
    def writes(self) -> list[str]:
        """The kinds of what was written, in order."""
        return [path.split("/")[-2] for method, path in self.calls if method == "PUT"]

    def data(self) -> dict[str, bytes]:
        """The Secret's data, decoded."""
        return {field: base64.b64decode(value) for field, value in self.secret.get("data", {}).items()}

    def ca_bundles(self) -> list[bytes]:
        return [base64.b64decode(one["clientConfig"].get("caBundle", "")) for one in self.configuration["webhooks"]]

    def publish(self, ca_bundle: bytes) -> None:
        """Write the `caBundle` of each webhook, as somebody else may."""
        changed = deepcopy(self.configuration)
        for webhook in changed["webhooks"]:
            webhook["clientConfig"]["caBundle"] = base64.b64encode(ca_bundle).decode()
        self.put(CONFIGURATION_PATH, changed)
