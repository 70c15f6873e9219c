"""Builders of live migrations and of VMIs that can migrate, and a fake KubeVirt for the fake API server."""

from typing import Any

from tests.support.builders import Object
from tests.support.crds import OPEN, crd
from tests.support.fleet import vmi

MIGRATABLE = {"type": "LiveMigratable", "status": "True"}
READY = {"type": "Ready", "status": "True"}


def migratable(
    name: str = "vm1",
    node: str = "node-b",
    *conditions: Object,
    annotations: Object | None = None,
    spec: Object | None = None,
    **status: Any,
) -> Object:
    """Build the VMI of a VM that runs and can migrate. Unknown keywords override fields of its status."""
    built = vmi(name, **(spec or {}))
    built["metadata"]["annotations"] = annotations or {}
    built["status"] = {"phase": "Running", "nodeName": node, "conditions": [MIGRATABLE, READY, *conditions]} | status
    return built


def migration(
    name: str = "m1", vm: str = "vm1", phase: str = "Running", *, labeled: bool = False, **state: Any
) -> Object:
    """Build a migration; unknown keywords go into its status.migrationState."""
    metadata = {"name": name, "namespace": "default", "uid": f"uid-of-{name}"}
    metadata |= {"labels": {"kubevirt-scheduler/recolocate": "true"}} if labeled else {}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": metadata,
        "spec": {"vmiName": vm},
        "status": {"phase": phase, "migrationState": state},
    }


def migration_crd(*, selector: bool = True, served: bool = True) -> Object:
    """Build the CRD of migrations; without `selector`, as before KubeVirt 1.6."""
    fields: Object = {"vmiName": {"type": "string"}}
    if selector:
        fields["addedNodeSelector"] = {"type": "object", "additionalProperties": {"type": "string"}}
    spec = OPEN | {"properties": fields}
    schema = {"type": "object", "properties": {"spec": spec, "status": OPEN}}
    return crd("VirtualMachineInstanceMigration", schema=schema, served=served)


def kubevirt(**migrations: int) -> Object:
    """Build the KubeVirt object; keywords are the limits on migrations."""
    spec = {"configuration": {"migrations": migrations}} if migrations else {}
    metadata = {"name": "kubevirt", "namespace": "kubevirt"}
    return {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": metadata, "spec": spec}
