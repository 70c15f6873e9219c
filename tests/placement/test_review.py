"""A request is read once: what a decision and the log use of it."""

from tests.support.accounts import KUBEVIRT
from tests.support.builders import pod, request, settings, share_manager_pod, typed, virt_launcher
from webhook.placement.objects.kubevirt import CREATED_BY_LABEL, MIGRATION_LABEL
from webhook.placement.objects.typed import convert
from webhook.placement.reasons import Mode, Subject
from webhook.placement.review import AdmissionRequest, read_request, read_untyped, review_of


def test_a_request_is_read_with_its_user_its_time_and_its_subject() -> None:
    begun = "2026-08-01T12:00:00Z"
    created = virt_launcher(annotations={"kubevirt-scheduler/co-schedule-mode": "never"})
    created["metadata"]["managedFields"] = [{"time": "2026-07-01T12:00:00Z"}, {"time": begun}]
    review = read_untyped(request(created, "shop"), settings())
    assert (review.manifest.namespace, review.manifest.user, review.begun) == ("shop", KUBEVIRT, begun)
    assert (review.subject, review.mode, review.unknown_mode) == (Subject.VM, Mode.REQUIRED, "never")
    assert (review.creates_pod, review.dry_run, review.pod_name) == (True, False, created["metadata"]["generateName"])


def test_a_review_from_a_file_may_name_no_user() -> None:
    unnamed = request(virt_launcher(), userInfo={})
    assert read_untyped(unnamed, settings()).manifest.user == ""
    assert read_untyped(unnamed, settings(), from_file=True).manifest.user is None
    assert read_request(convert(unnamed, AdmissionRequest), settings()).manifest.user == ""


def test_a_request_that_names_no_kind_has_its_objects_kind() -> None:
    unnamed = {key: value for key, value in request(virt_launcher()).items() if key != "kind"}
    assert read_untyped(unnamed, settings()).creates_pod is True
    assert read_untyped(unnamed | {"object": unnamed["object"] | {"kind": "Job"}}, settings()).creates_pod is False
    of_a_job = unnamed | {"kind": {"group": "batch", "version": "v1", "kind": "Job"}}
    assert read_untyped(of_a_job, settings()).creates_pod is False


def test_a_pod_is_reviewed_as_if_its_controller_created_it() -> None:
    review = review_of(typed(pod("web", "shop"), "shop"), settings())
    assert (review.subject, review.pod_name, review.manifest.namespace) == (Subject.VM, "web", "shop")
    assert (review.manifest.user, review.creates_pod, review.dry_run) == (None, True, True)
    assert review_of(typed(share_manager_pod(), "longhorn-system"), settings()).subject is Subject.SHARE_MANAGER


def test_the_target_of_a_migration_is_read_as_the_pod_of_a_start() -> None:
    target = review_of(typed(virt_launcher(labels={MIGRATION_LABEL: "uid", "team": "a"})), settings()).manifest
    start = target.as_start()
    assert (target.is_migration_target, start.is_migration_target) == (True, False)
    assert start.labels == {key: value for key, value in target.labels.items() if key != MIGRATION_LABEL}


def test_a_field_of_another_type_is_named_also_beside_a_null() -> None:
    received = request(virt_launcher(tolerations=[None, 5]), "shop", dryRun=True)
    review = read_untyped(received, settings())
    assert (review.malformed, review.dry_run) == ("spec.tolerations[0]: expected object, got int", True)
    assert review.manifest.namespace == "shop"
    # A patch applies to the affinity as it was received.
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}}
    with_nulls = read_untyped(request(virt_launcher(tolerations=[None], affinity=affinity)), settings())
    assert (with_nulls.malformed, with_nulls.manifest.affinity) == ("", affinity)


def test_only_the_controller_of_a_pods_owners_is_its_vmi() -> None:
    owned = virt_launcher(labels={CREATED_BY_LABEL: "uid-1"})
    real = owned["metadata"]["ownerReferences"]
    owned["metadata"]["ownerReferences"] = [real[0] | {"name": "made-up", "controller": False}, *real]
    manifest = typed(owned)
    assert (manifest.controlling_vmi, manifest.metadata.controller.name) == (("uid-1", "vm"), "vm")
    owned["metadata"]["ownerReferences"].pop()
    assert typed(owned).controlling_vmi == ("", "")
