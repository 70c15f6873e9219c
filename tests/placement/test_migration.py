"""With `CO_SCHEDULE_MIGRATION_TARGETS=prefer`, a live-migration target prefers the node of its share-manager."""

from typing import Any

import pytest

from tests.support.builders import (
    Object,
    apply_injection,
    injection_for,
    node,
    pinned_fields,
    share_manager,
    storage,
    virt_launcher,
)
from webhook.placement.reasons import Outcome, Reason
from webhook.placement.settings import MigrationTargets

VMI = {"kubevirt.io/created-by": "vmi-1"}
CLUSTER = [*storage(), node(), node("node-b"), virt_launcher("source", node="node-b", labels=VMI)]
PREFER = {"migration_targets": MigrationTargets.PREFER}


def target(labels: Object | None = None, **rest: Any) -> Object:
    return virt_launcher(labels=VMI | {"kubevirt.io/migrationJobUID": "migration-1"} | (labels or {}), **rest)


STARTING = [*storage()[:2], share_manager(state="starting")]


@pytest.mark.parametrize(
    ("created", "objects"),
    [
        pytest.param(target(), [*storage(node="node-b"), *CLUSTER[3:]], id="the source runs there"),
        pytest.param(target(nodeSelector={"kubernetes.io/hostname": "node-c"}), CLUSTER, id="a hostname selector"),
        pytest.param(target(annotations={"kubevirt.io/eviction-source": "descheduler"}), CLUSTER, id="evicted"),
        pytest.param(target(), [], id="no share-manager"),
        pytest.param(target(), [*STARTING, *CLUSTER[3:]], id="the source alone uses the starting share-manager"),
    ],
)
def test_a_migration_that_leads_elsewhere_is_left_alone(created: Object, objects: list[Object]) -> None:
    injection = injection_for(created, *objects, **PREFER)
    assert (injection.decision.outcome, injection.decision.reason) == (Outcome.UNCHANGED, Reason.MIGRATION_TARGET)
    assert injection.patch is None


def test_a_migration_target_never_competes_with_a_pinned_vm() -> None:
    full = node(allocatable={"cpu": "1", "memory": "1Gi", "pods": "10"})
    pinned = virt_launcher("vm2", requests={"cpu": "1"}, **pinned_fields("node-a"))
    decision = injection_for(target(requests={"cpu": "1"}), *storage(), full, pinned, **PREFER).decision
    assert (decision.outcome, decision.reason) == (Outcome.UNCHANGED, Reason.NODE_FULL)


def test_another_vm_on_the_node_is_not_the_migrations_source() -> None:
    other = virt_launcher("other", node="node-a", labels={"kubevirt.io/created-by": "vmi-2"})
    injection = injection_for(target(), *CLUSTER, other, **PREFER)
    assert injection.decision.outcome is Outcome.PREFERRED
    assert injection.decision.reservation is None  # the source already counts as the pod of this VMI
    again = injection_for(apply_injection(target(), injection), *CLUSTER, other, **PREFER)
    assert (again.decision.reason, again.patch) == (Reason.ALREADY_INJECTED, None)
