"""The checks before an installation: the versions, the claims, and the rights of the user who installs."""

from collections import Counter
from collections.abc import Iterator
from functools import cache

from webhook.cluster.caches.kinds import CLAIMS, KUBEVIRT_API, VOLUMES
from webhook.cluster.caches.store import Store
from webhook.commands.doctor.inspection import Inspection
from webhook.commands.doctor.result import Result, failure, listed, ok, warning
from webhook.placement.objects.facts import Claim
from webhook.placement.objects.fields import text, version_numbers

OLDEST_KUBERNETES = (1, 30)  # as in the chart's kubeVersion: ValidatingAdmissionPolicy v1
# Only these versions of Longhorn keep a VM's pod when they replace the share-manager of its volume
# (docs/reference/versions.md): from the first one up to, but without the second.
KEEPS_PODS_FROM, DELETES_PODS_FROM = (1, 7, 2), (1, 12)
# From this version of KubeVirt on, a live migration can name its target node (docs/reference/versions.md).
MIGRATES_TO_NODE_FROM = (1, 6)

_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
# What the chart creates with its default values: group, resource, and whether it is namespaced.
CHART_RESOURCES = (
    ("", "namespaces", False),
    (_ADMISSION, "mutatingwebhookconfigurations", False),
    (_ADMISSION, "validatingadmissionpolicies", False),
    (_ADMISSION, "validatingadmissionpolicybindings", False),
    (_RBAC, "clusterroles", False),
    (_RBAC, "clusterrolebindings", False),
    (_RBAC, "roles", True),
    (_RBAC, "rolebindings", True),
    ("", "secrets", True),
    ("", "serviceaccounts", True),
    ("", "services", True),
    ("apps", "deployments", True),
    ("coordination.k8s.io", "leases", True),
    ("networking.k8s.io", "networkpolicies", True),
    ("policy", "poddisruptionbudgets", True),
)


def kubernetes(inspection: Inspection) -> Iterator[Result]:
    """Check the version of Kubernetes."""
    name = text(inspection.get("/version"), "gitVersion")
    if version_numbers(name) < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        yield failure(f"Kubernetes {name or 'of an unknown version'}", f"Upgrade to {oldest} or newer.")
    else:
        yield ok(f"Kubernetes {name}")


def kubevirt(inspection: Inspection) -> Iterator[Result]:
    """Check that KubeVirt is installed."""
    found = inspection.items(f"{KUBEVIRT_API}/kubevirts")
    if not found:
        yield failure("KubeVirt is not installed", "Install KubeVirt: the webhook handles only its VMs.")
        return
    version, phase = text(found[0], "status", "observedKubeVirtVersion"), text(found[0], "status", "phase")
    name = f"KubeVirt {version or 'of an unknown version'}"
    if phase == "Deployed":
        is_old = () < version_numbers(version) < MIGRATES_TO_NODE_FROM
        yield ok(f"{name}, with which recolocate cannot migrate VMs to their storage" if is_old else name)
    else:
        yield warning(f"{name} is in phase {phase or 'unknown'}", "Wait until KubeVirt is in phase Deployed.")


@cache
def longhorn_version(inspection: Inspection) -> str:
    """Return the version of Longhorn, such as v1.11.3; empty if it isn't installed in its namespace."""
    namespace = inspection.settings.longhorn_namespace
    path = f"/apis/longhorn.io/v1beta2/namespaces/{namespace}/settings/current-longhorn-version"
    return text(inspection.get(path), "value")


def longhorn(inspection: Inspection) -> Iterator[Result]:
    """Check that Longhorn is installed where the webhook looks for it."""
    namespace, name = inspection.settings.longhorn_namespace, longhorn_version(inspection)
    if not name:
        advice = "Install Longhorn, or set settings.longhornNamespace to its namespace."
        yield failure(f"Longhorn is not installed in namespace {namespace}", advice)
    elif KEEPS_PODS_FROM <= version_numbers(name) < DELETES_PODS_FROM:
        yield ok(f"Longhorn {name}")
    else:
        yield ok(f"Longhorn {name}, which deletes a VM's pod when it replaces the share-manager of a volume")


@cache
def longhorn_claims(inspection: Inspection) -> list[Claim]:
    """List the claims with ReadWriteMany whose volume is Longhorn's."""
    store = Store(fact for kind in (CLAIMS, VOLUMES) for fact in inspection.facts(kind))
    shared = (claim for claim in store.claims.values() if claim.shared)
    return [claim for claim in shared if (volume := store.volume(claim.volume_name)) and volume.handle]


def claims(inspection: Inspection) -> Iterator[Result]:
    """Check that there are claims that a share-manager serves."""
    modes = Counter("Block" if claim.block else "Filesystem" for claim in longhorn_claims(inspection))
    if modes["Filesystem"]:
        yield ok(f"Longhorn claims with ReadWriteMany and volumeMode Filesystem: {modes['Filesystem']}")
    else:
        yield warning(
            f"Longhorn claims with ReadWriteMany and volumeMode Filesystem: none (Block: {modes['Block']})",
            "Only such claims have a share-manager. Without them, the webhook places no VM.",
        )


def install_rights(inspection: Inspection) -> Iterator[Result]:
    """Check that the user may create the chart's resources."""
    missing = [
        resource
        for group, resource, namespaced in CHART_RESOURCES
        if not inspection.allows(
            "SelfSubjectAccessReview",
            {"verb": "create", "group": group, "resource": resource}
            | ({"namespace": inspection.release_namespace} if namespaced else {}),
        )
    ]
    if missing:
        yield failure(
            f"missing rights: create {listed(missing, len(missing))}",
            "Install the chart as a user with these rights, for example as a cluster administrator.",
        )
    else:
        yield ok(f"you have the rights to install the chart in namespace {inspection.release_namespace}")
