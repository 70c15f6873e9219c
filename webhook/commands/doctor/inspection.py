"""The cluster as the checks read it: objects as dicts, and a missing right as an exception of its own."""

from collections.abc import Iterator
from dataclasses import dataclass

from webhook.cluster.caches.kinds import Kind
from webhook.placement.objects.facts import Fact
from webhook.placement.objects.fields import JsonObject, mapping
from webhook.placement.settings import Settings
from webhook.reading.api import REQUEST_TIMEOUT, Denied, Reader, allowed

__all__ = ["Denied", "Inspection"]


@dataclass(frozen=True, slots=True, eq=False)  # each one is a key of the caches of what several checks read
class Inspection(Reader):
    """The cluster to check.

    `configuration` is the name of the MutatingWebhookConfiguration. `vm_namespace` is where a VM's pod is created as a
    dry run. `release_namespace` is where the chart will be installed. Each method raises Denied, or BadInput if the API
    server can't be reached.
    """

    settings: Settings
    configuration: str
    vm_namespace: str
    release_namespace: str

    def facts(self, kind: Kind) -> Iterator[Fact]:
        """List the facts about the objects of a kind, without those that can't be read."""
        return kind.read_all(self.raw_items(kind.path, kind.query), lambda *_: None)

    def create(self, path: str, body: JsonObject) -> JsonObject:
        """Create an object that the API server only answers, such as a SubjectAccessReview."""
        with allowed():
            return self.cluster.send("POST", path, body, REQUEST_TIMEOUT)

    def allows(self, review: str, attributes: JsonObject, **subject: object) -> bool:
        """Return whether a user may do something: the caller by a SelfSubjectAccessReview, or the `subject`."""
        spec = subject | {"resourceAttributes": attributes}
        answer = self.create(f"/apis/authorization.k8s.io/v1/{review.lower()}s", {"kind": review, "spec": spec})
        return mapping(answer, "status").get("allowed") is True
