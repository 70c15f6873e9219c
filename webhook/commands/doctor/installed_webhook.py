"""The checks of the installed webhook: its replicas, caches, certificates and rights, and of your right to install."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from certs.cluster import CertificateObjects
from certs.secret import Cause, CertificateError
from certs.status import OLD, read_status
from webhook import __version__
from webhook.catalog.kinds import kinds
from webhook.commands.doctor.inspection import Inspection, Result, failure, listed, ok, warning
from webhook.placement.guard.feasibility import STALE_MINUTES
from webhook.placement.objects.fields import JsonObject, condition, has_condition, mapping, mappings, text
from webhook.placement.objects.pod import is_terminating
from webhook.reading.api import REQUEST_TIMEOUT, Denied, answered, read_list, read_object
from webhook.reading.documents import BadInput
from webhook.reading.installation import VERSION_LABEL, Installation, serving_container

# Of the chart's Deployment.
WEBHOOK_LABELS = "app.kubernetes.io/name=kubevirt-scheduler,app.kubernetes.io/component=webhook"
EXPIRES_SOON = timedelta(days=7)
# What the chart creates with its default values.
CLUSTER_SCOPED = """mutatingwebhookconfigurations.admissionregistration.k8s.io
validatingadmissionpolicies.admissionregistration.k8s.io validatingadmissionpolicybindings.admissionregistration.k8s.io
clusterroles.rbac.authorization.k8s.io clusterrolebindings.rbac.authorization.k8s.io""".split()
NAMESPACED = """secrets serviceaccounts services deployments.apps leases.coordination.k8s.io poddisruptionbudgets.policy
roles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io""".split()


def missing(inspection: Inspection) -> Result:
    """Say what is missing of an installation whose MutatingWebhookConfiguration isn't found."""
    named, advice = inspection.configuration, "Install the chart, or upgrade its release."
    found = list[JsonObject]()
    with suppress(Denied):
        found = read_list(inspection.cluster, "/apis/apps/v1/deployments", labelSelector=WEBHOOK_LABELS)
    if found:
        name = f"{text(found[0], 'metadata', 'namespace')}/{text(found[0], 'metadata', 'name')}"
        gone = f"MutatingWebhookConfiguration {named}".rstrip()
        advice = "If somebody deleted it to stop the webhook, an upgrade of the release brings it back: helm upgrade."
        return failure(f"the API server does not call the webhook of Deployment {name}: {gone} not found", advice)
    finding = f"MutatingWebhookConfiguration {named} not found" if named else "the webhook is not installed"
    return failure(finding, advice)


def replicas(_: Inspection, installed: Installation) -> Iterator[Result]:
    """Check that all replicas are ready and that no rollout waits."""
    if not installed.deployment:
        advice = "Repair the release: helm upgrade."
        yield failure(
            f"no Deployment matches the selector of Service {installed.namespace}/{installed.service}", advice
        )
        return
    wanted = mapping(installed.deployment, "spec").get("replicas", 1)
    finished = ("Succeeded", "Failed")
    active = [pod for pod in installed.pods if not is_terminating(pod) and text(pod, "status", "phase") not in finished]
    ready = [pod for pod in active if has_condition(pod, "Ready")]
    counted = f"{len(ready)} of {wanted} replicas are ready"
    advice = f"Check the pods: kubectl -n {installed.namespace} describe pods -l app.kubernetes.io/component=webhook"
    rejected = condition(installed.deployment, "ReplicaFailure")
    if rejected.get("status") == "True":  # Pod Security or a quota, for example: there are no pods to describe
        counted += f", because the API server rejects their pods: {text(rejected, 'message')}"
        advice = "Change what the message names, such as the namespace's Pod Security level or quota."
    if not ready:
        yield failure(counted, advice)
    elif len(ready) < wanted:
        yield warning(counted, advice)
    else:
        yield ok(counted)
    if len(active) > wanted:  # until a new replica is ready, the old ones stay
        yield warning(f"a rollout has not ended: {len(active)} replicas", advice)
    version = text(installed.deployment, "metadata", "labels", VERSION_LABEL)
    if version and version != __version__:
        yield warning(
            f"the installed version is {version}, but this command has version {__version__}",
            "Use the command of the installed version: checks and decisions may differ between versions.",
        )


def caches(inspection: Inspection, installed: Installation) -> Iterator[Result]:
    """Check the age of each replica's caches, by /readyz?verbose."""
    ready = (pod for pod in installed.pods if has_condition(pod, "Ready"))
    answers = {text(pod, "metadata", "name"): _readiness(inspection, installed, pod) for pod in ready}
    oldest = 0.0
    problems = list[tuple[str, str]]()
    for name, answer in answers.items():
        problems += [(name, f"{resource}: {problem}") for resource, problem in mapping(answer, "problems").items()]
        for cache in mappings(answer, "caches"):
            age = cache.get("age") or 0.0
            oldest = max(oldest, age)
            if age > STALE_MINUTES * 60:
                problems.append((name, f"{text(cache, 'resource')}: no update from the API server for {age:.0f} s"))
    for name, problem in problems:
        yield warning(f"{name}: {problem}", f"Check the log: kubectl -n {installed.namespace} logs {name}")
    if answers and not problems:
        yield ok(f"the caches of all ready replicas are up to date (oldest update: {oldest:.0f} s ago)")


def _readiness(inspection: Inspection, installed: Installation, pod: JsonObject) -> JsonObject:
    name = text(pod, "metadata", "name")
    ports = mappings(serving_container(pod), "ports")
    port = next((each.get("containerPort") for each in ports if each.get("name") == "http"), 8080)
    path = f"/api/v1/namespaces/{installed.namespace}/pods/{name}:{port}/proxy/readyz?verbose="
    try:
        return read_object(inspection.cluster, path) or {"problems": {"/readyz": "not found"}}
    except Denied:
        raise
    except BadInput as error:  # the API server can't reach the pod, or the replica answers 503
        return {"problems": {"/readyz": str(error)}}


def certificates(inspection: Inspection, installed: Installation) -> Iterator[Result]:
    """Check the certificates, their expiry, and that each webhook's caBundle trusts them."""
    if installed.secret is None:
        yield failure("the replicas have no Secret with a certificate", "Repair the release: helm upgrade.")
        return
    now = datetime.now(UTC)
    objects = CertificateObjects(inspection.cluster, installed.secret, inspection.configuration)
    advice = f"Show the certificates: kubevirt-scheduler certs status --webhook-configuration {installed.name}"
    try:
        report = read_status(objects, now)
    except CertificateError as error:
        if error.cause in (Cause.FORBIDDEN, Cause.UNREACHABLE):
            raise (Denied if error.cause is Cause.FORBIDDEN else BadInput)(str(error)) from None
        yield failure(str(error), advice)
        return
    if report.problem:
        yield failure(report.problem, advice)
    distrusting = [name for name, trusts in report.webhooks.items() if not trusts]
    if distrusting:
        yield failure(f"the caBundle of {listed(distrusting)} does not trust the serving certificate", advice)
    elif report.difference:
        yield warning(report.difference, advice)
    ends = {what: certificate.not_after for what, certificate in report.certificates if what != OLD}
    for what, end in ends.items():
        if end - now < EXPIRES_SOON:
            yield warning(f"the {what} expires on {end:%Y-%m-%d %H:%M} UTC", advice)
    if not report.problem and not distrusting and ends:
        yield ok(f"every caBundle trusts the serving certificate, which expires on {min(ends.values()):%Y-%m-%d}")


def rights(inspection: Inspection, installed: Installation) -> Iterator[Result]:
    """Ask the API server whether the replicas' ServiceAccount has each right that their settings need."""
    account = text(installed.deployment, "spec", "template", "spec", "serviceAccountName") or "default"
    user = f"system:serviceaccount:{installed.namespace}:{account}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{installed.namespace}", "system:authenticated"]
    needed = _needed_rights(inspection, installed)
    if missing := list(_missing(inspection, "subjectaccessreviews", needed, user=user, groups=groups)):
        advice = "Upgrade the release with rbac.create, or grant the rights that docs/reference/rights.md lists."
        yield failure(f"{user} lacks rights: {', '.join(missing)}", advice)
    else:
        yield ok(f"{user} has the rights that the webhook needs")


def rights_to_install(inspection: Inspection, _: None) -> Iterator[Result]:
    """Ask the API server whether the user may create what the chart creates."""
    namespace = inspection.namespace
    needed = (
        {"verb": "create", "resource": plural, "group": group, "namespace": where}
        for names, where in ((CLUSTER_SCOPED, ""), (NAMESPACED, namespace))
        for plural, _, group in (name.partition(".") for name in names)
    )
    if missing := list(_missing(inspection, "selfsubjectaccessreviews", needed)):
        advice = "Install the chart as a user with these rights, or in another namespace: -n NAME"
        yield failure(f"you lack rights to install the chart in namespace {namespace}: {', '.join(missing)}", advice)
    else:
        yield ok(f"you have the rights to install the chart in namespace {namespace}")


def _missing(inspection: Inspection, reviews: str, needed: Iterable[JsonObject], **subject: object) -> Iterator[str]:
    for right in needed:
        path = f"/apis/authorization.k8s.io/v1/{reviews}"
        spec = subject | {"resourceAttributes": right}
        with answered():
            review = inspection.cluster.send("POST", path, {"spec": spec}, REQUEST_TIMEOUT)
        if mapping(review, "status").get("allowed") is not True:
            yield f"{right['verb']} {right['resource']}"


def _needed_rights(inspection: Inspection, installed: Installation) -> Iterator[dict[str, str]]:
    """Yield the resource attributes of each right."""
    settings = installed.settings
    for kind in kinds(settings.longhorn_namespace):
        for verb in ("list", "watch"):
            yield {"verb": verb, "group": kind.group, "resource": kind.plural, "namespace": kind.namespace}
    yield {"verb": "create", "resource": "events"}
    if settings.release:
        yield {"verb": "delete", "resource": "pods"}
    configuration = f"/{inspection.configuration}" if "--webhook-configuration" in installed.arguments else ""
    for own, group, resource in (
        (installed.arguments.get("--tls-secret"), "", "secrets"),
        (installed.arguments.get("--lease"), "coordination.k8s.io", "leases"),
        (configuration, "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ):
        namespace, _, name = (own or "").partition("/")
        for verb in ("get", "update") if name else ():
            yield {"verb": verb, "group": group, "resource": resource, "namespace": namespace, "name": name}
