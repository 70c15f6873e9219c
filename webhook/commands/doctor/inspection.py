"""The cluster as the checks read it: objects as dicts, and a missing right as an exception of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.kinds import Kind
from webhook.cluster.objects import Fact
from webhook.placement.objects.fields import JsonObject, Malformed, mapping
from webhook.placement.settings import Settings
from webhook.reading.api import answered, list_raw, read_object

REQUEST_TIMEOUT = 15.0  # seconds
_FORBIDDEN, _NOT_FOUND = 403, 404


class Denied(Exception):
    """The user lacks the right for a request that a check needs. The message is the API server's."""


@contextmanager
def _allowed() -> Iterator[None]:
    try:
        with answered(tolerated=_FORBIDDEN):
            yield
    except ClusterError as error:
        raise Denied(str(error)) from None


@dataclass(frozen=True, slots=True)
class Inspection:
    """The cluster to check.

    `configuration` is the name of the MutatingWebhookConfiguration. `vm_namespace` is where a VM's pod is created as a
    dry run. `release_namespace` is where the chart will be installed. Each method raises Denied, or BadInput if the API
    server can't be reached.
    """

    cluster: ClusterClient
    settings: Settings
    configuration: str
    vm_namespace: str
    release_namespace: str

    def get(self, path: str) -> JsonObject | None:
        """Read one object; None if it or its kind doesn't exist."""
        with _allowed():
            return read_object(self.cluster, path, REQUEST_TIMEOUT)

    def items(self, path: str, **query: str) -> list[JsonObject]:
        """List objects; none if their kind doesn't exist."""
        return [msgspec.json.decode(raw, type=JsonObject) for raw in self._raw_items(path, query)]

    def facts(self, kind: Kind) -> Iterator[Fact]:
        """List the facts about the objects of a kind, without those that can't be read."""
        for raw in self._raw_items(kind.path, kind.query):
            try:
                fact = kind.read(msgspec.json.decode(raw, type=kind.shape))
            except (Malformed, TypeError):
                continue
            if fact is not None:
                yield fact

    def create(self, path: str, body: JsonObject) -> JsonObject:
        """Create an object that the API server only answers, such as a SubjectAccessReview."""
        with _allowed():
            return self.cluster.send("POST", path, body, REQUEST_TIMEOUT)

    def allows(self, review: str, attributes: JsonObject, **subject: object) -> bool:
        """Return whether a user may do something: the caller by a SelfSubjectAccessReview, or the `subject`."""
        spec = subject | {"resourceAttributes": attributes}
        answer = self.create(f"/apis/authorization.k8s.io/v1/{review.lower()}s", {"kind": review, "spec": spec})
        return mapping(answer, "status").get("allowed") is True

    def _raw_items(self, path: str, query: dict[str, str]) -> list[msgspec.Raw]:
        with _allowed():
            try:
                return list_raw(self.cluster, path, **query)
            except ClusterError as error:
                if error.code != _NOT_FOUND:
                    raise
        return []
