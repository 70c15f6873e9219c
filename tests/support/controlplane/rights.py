"""What a ServiceAccount may do now: the API server learns of roles and bindings by watches, up to a second later."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tests.support.controlplane.api import Api, Object

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
Right = tuple[str, Object]  # a user, and what it may do, as a review asks for it


def bound(api: Api, namespace: str, account: str) -> Iterator[list[Right]]:
    """The rights of each role that is bound to the account, in the role's order."""
    subject = {"kind": "ServiceAccount", "namespace": namespace, "name": account}
    user = f"system:serviceaccount:{namespace}:{account}"
    for kind in "clusterrolebindings", "rolebindings":
        for binding in api.request("GET", f"{RBAC}/{kind}")["items"]:
            if subject in binding.get("subjects", []):
                where, role = binding["metadata"].get("namespace", ""), binding["roleRef"]
                path = f"{RBAC}/clusterroles" if role["kind"] == "ClusterRole" else f"{RBAC}/namespaces/{where}/roles"
                rules = api.request("GET", f"{path}/{role['name']}").get("rules") or []
                yield [(user, each | {"namespace": where}) for rule in rules for each in _said(rule)]


def _said(rule: Object) -> Iterator[Object]:
    """Each right that a rule grants."""
    names = rule.get("resourceNames") or [""]
    for verb, group, kind, name in product(rule["verbs"], rule.get("apiGroups", []), rule.get("resources", []), names):
        resource, _, subresource = kind.partition("/")
        yield {"verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name}


def is_granted(api: Api, right: Right) -> bool:
    """Ask the API server."""
    user, what = right
    review = {"spec": {"user": user, "resourceAttributes": what}}
    return bool(api.request("POST", REVIEWS, review)["status"]["allowed"])


def are_known(api: Api, namespace: str, account: str) -> bool:
    """Whether the last right of each role is granted: where one was added, it is that."""
    return all(is_granted(api, rights[-1]) for rights in bound(api, namespace, account) if rights)
