"""The effective RBAC rights of a ServiceAccount: the API server applies a changed role or binding up to 1 s later."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tests.support.controlplane.api import Api, Object

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
Right = tuple[str, Object]  # a user and the resourceAttributes of a SubjectAccessReview


def rights_by_role(api: Api, namespace: str, account: str) -> Iterator[list[Right]]:
    """Yield the rights of each role that is bound to the account, in the order of the role's rules."""
    subject = {"kind": "ServiceAccount", "namespace": namespace, "name": account}
    user = f"system:serviceaccount:{namespace}:{account}"
    for kind in "clusterrolebindings", "rolebindings":
        for binding in api.request("GET", f"{RBAC}/{kind}")["items"]:
            if subject in binding.get("subjects", []):
                role_namespace, role = binding["metadata"].get("namespace", ""), binding["roleRef"]
                path = (
                    f"{RBAC}/clusterroles"
                    if role["kind"] == "ClusterRole"
                    else f"{RBAC}/namespaces/{role_namespace}/roles"
                )
                rules = api.request("GET", f"{path}/{role['name']}").get("rules") or []
                yield [(user, each | {"namespace": role_namespace}) for rule in rules for each in _rights_of(rule)]


def _rights_of(rule: Object) -> Iterator[Object]:
    """Yield the resourceAttributes of each right that a rule grants."""
    names = rule.get("resourceNames") or [""]
    for verb, group, kind, name in product(rule["verbs"], rule.get("apiGroups", []), rule.get("resources", []), names):
        resource, _, subresource = kind.partition("/")
        yield {"verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name}


def is_granted(api: Api, right: Right) -> bool:
    """Return whether the API server grants the right now."""
    user, attributes = right
    review = {"spec": {"user": user, "resourceAttributes": attributes}}
    return bool(api.request("POST", REVIEWS, review)["status"]["allowed"])


def are_effective(api: Api, namespace: str, account: str) -> bool:
    """Return whether the API server grants the last right of each role: an added right comes last."""
    return all(is_granted(api, rights[-1]) for rights in rights_by_role(api, namespace, account) if rights)
