"""A fake API server with one Secret and one MutatingWebhookConfiguration, and a clock that tests advance.

Before each request the server calls `on_request`, in which a test may let another replica act. `fail_before` and
`fail_after` map the number of a request to the exception that it raises.
"""

import base64
import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from certs import CONFIGURATIONS, ApiError

Object = dict[str, Any]

NAMESPACE, NAME = "kubevirt-scheduler", "kubevirt-scheduler-tls"
CONFIGURATION = "kubevirt-scheduler"
SECRET_PATH = f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}"
CONFIGURATION_PATH = f"{CONFIGURATIONS}/{CONFIGURATION}"
NAMES = ("webhook.kubevirt-scheduler.svc", "webhook.kubevirt-scheduler.svc.cluster.local")


class Crash(BaseException):
    """Stands for the end of the process by `kill -9`."""


def secret() -> Object:
    """The Secret as the chart creates it."""
    metadata = {"namespace": NAMESPACE, "name": NAME, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}


def configuration() -> Object:
    """The configuration as the chart creates it: two webhooks without a `caBundle`."""
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


class FakeCertificateCluster:
    """Implements `get` and `send` like an API server, including the check of the resource version."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.version = 100
        self.calls: list[tuple[str, str]] = []
        self.conflicts = 0
        self.on_request: Callable[[str, str], None] = lambda _method, _path: None
        self.fail_before: dict[int, BaseException] = {}
        self.fail_after: dict[int, BaseException] = {}
        for path, content in ((SECRET_PATH, secret()), (CONFIGURATION_PATH, configuration())):
            self.put(path, content)

    def put(self, path: str, content: Object) -> None:
        self.version += 1
        stored = deepcopy(content)
        stored["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = stored

    def get(self, path: str, timeout: float = 60.0) -> Object | None:
        assert timeout <= 5
        raise_fault = self._record("GET", path)
        found = self.objects.get(path)
        raise_fault()
        return deepcopy(found)

    def send(self, method: str, path: str, body: Object, timeout: float) -> Object:
        assert (method, timeout <= 5) == ("PUT", True)
        raise_fault = self._record(method, path)
        if path not in self.objects:
            raise ApiError(404, f"{path} not found")
        if body["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
            self.conflicts += 1
            raise ApiError(409, "the object has been modified; please apply your changes to the latest version")
        self.put(path, json.loads(json.dumps(body)))
        raise_fault()
        return deepcopy(self.objects[path])

    def _record(self, method: str, path: str) -> Callable[[], None]:
        self.on_request(method, path)
        number = len(self.calls)
        self.calls.append((method, path))
        if number in self.fail_before:
            raise self.fail_before.pop(number)

        def raise_fault() -> None:
            if number in self.fail_after:
                raise self.fail_after.pop(number)

        return raise_fault

    @property
    def secret(self) -> Object:
        return self.objects[SECRET_PATH]

    @property
    def configuration(self) -> Object:
        return self.objects[CONFIGURATION_PATH]

    @property
    def writes(self) -> list[str]:
        """The resource of each write, in order."""
        return [path.split("/")[-2] for method, path in self.calls if method == "PUT"]

    def data(self) -> dict[str, bytes]:
        """The Secret's data, decoded."""
        return {field: base64.b64decode(value) for field, value in self.secret.get("data", {}).items()}

    def ca_bundles(self) -> list[bytes]:
        return [base64.b64decode(one["clientConfig"].get("caBundle", "")) for one in self.configuration["webhooks"]]

    def publish(self, ca_bundle: bytes) -> None:
        """Write the `caBundle` of each webhook, like another client of the API server."""
        changed = deepcopy(self.configuration)
        for webhook in changed["webhooks"]:
            webhook["clientConfig"]["caBundle"] = base64.b64encode(ca_bundle).decode()
        self.put(CONFIGURATION_PATH, changed)
