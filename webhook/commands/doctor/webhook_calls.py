"""The checks of whether the API server calls the webhook for the pods of the opted-in VMs."""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial

from certs import CONFIGURATIONS
from webhook.catalog.kinds import KUBEVIRT_API, NAMESPACES, PODS
from webhook.cluster.fleet_counts import is_undecided
from webhook.commands.doctor.inspection import Inspection, Result, failure, inventory, listed, ok, warning
from webhook.commands.doctor.probe import attempt, retry
from webhook.fleet.webhook import VM_WEBHOOK
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.kubevirt import VIRT_LAUNCHER
from webhook.placement.objects.selectors import labels_match
from webhook.placement.opt_in import opt_in_mistake, opted_in_by
from webhook.placement.reasons import OptedInBy
from webhook.placement.settings import Action
from webhook.reading.api import Denied, read_list, read_object
from webhook.reading.documents import BadInput
from webhook.reading.installation import Installation

_ADVICE = (
    "Check that the webhook is ready, has a caBundle, and selects this namespace. If it requires client certificates "
    "(tls.clientCA), check that the API server has one: kubectl get mutatingwebhookconfiguration "
)


def accounts(inspection: Inspection, installed: Installation) -> Iterator[Result]:
    """Compare the accounts for which the webhook decides with those of the virt-controllers that run."""
    running = _controllers(inspection)
    ignored = [account for account in running if not _admits(installed, account)]
    if not running:
        yield warning("no virt-controller runs", "Check KubeVirt: without it, no VM starts.")
    elif ignored:
        yield failure(
            f"the webhook ignores the VMs of KubeVirt's controller, {listed(ignored)}",
            "Set settings.kubevirtAccounts to this account, and upgrade the release.",
        )
    else:
        yield ok(f"the webhook decides for KubeVirt's controller, {listed(running)}")


@cache
def _controllers(inspection: Inspection) -> list[str]:
    """Return the accounts of the virt-controllers that run."""
    kubevirts = read_list(inspection.cluster, f"{KUBEVIRT_API}/kubevirts")
    selector = "kubevirt.io=virt-controller"
    paths = {PODS.path_in(text(item, "metadata", "namespace")) for item in kubevirts}
    pods = [pod for path in sorted(paths) for pod in read_list(inspection.cluster, path, labelSelector=selector)]
    return sorted({_account(pod) for pod in pods})


def _account(pod: JsonObject) -> str:
    name = text(pod, "spec", "serviceAccountName") or "default"
    return f"system:serviceaccount:{text(pod, 'metadata', 'namespace')}:{name}"


def _admits(installed: Installation, account: str) -> bool:
    """Return whether the settings of the replicas and the matchConditions of the webhook admit an account."""
    conditions = [each for webhook in installed.webhooks for each in mappings(webhook, "matchConditions")]
    about_users = [text(each, "expression") for each in conditions if text(each, "name") == "from-kubevirt"]
    return account in installed.settings.kubevirt_accounts and all(f"'{account}'" in each for each in about_users)


def calls(inspection: Inspection, installed: Installation) -> Iterator[Result]:
    """Check that the API server calls the webhook, by creating a VM's pod as a dry run, as KubeVirt's controller."""
    namespace, accepted = inspection.namespace, installed.settings.kubevirt_accounts
    with suppress(Denied):
        if read_object(inspection.cluster, f"{NAMESPACES.path}/{namespace}") is None:
            yield failure(f'namespace "{namespace}" not found', "Specify an existing namespace: -n NAME")
            return
    # Of the chart's default accounts, only one exists, and the API server authorizes a dry run like a real creation.
    account = next((each for each in _controllers(inspection) if each in accepted), accepted[0])
    try:
        decision, problem = attempt(
            inspection.cluster.impersonating(account), namespace, installed.settings.opt_in_annotations[0]
        )
    except BadInput as error:  # a quota, a policy or a missing right
        advice = f"You need the right to impersonate {account}. Or specify another namespace: -n NAME"
        yield warning(f"namespace {namespace}: {error}", advice)
        return
    yield _called(inspection, decision, problem)
    if decision and installed.settings.action is Action.OBSERVE:
        yield warning(
            "the webhook runs in observe mode and changes no pod", "To place VMs, set settings.action to inject."
        )


def own_calls(inspection: Inspection, seconds: int) -> Result:
    """Check the same with the user's own account, and wait for a call. Raises BadInput if the pod is rejected."""
    key = inspection.settings.opt_in_annotations[0]
    return _called(inspection, *retry(partial(attempt, inspection.cluster, inspection.namespace, key), seconds))


def _called(inspection: Inspection, decision: str, problem: str) -> Result:
    namespace = inspection.namespace
    if decision:
        return ok(f"the API server calls the webhook for VMs in namespace {namespace}")
    return failure(f"namespace {namespace}: {problem}", f"{_ADVICE}{inspection.configuration} -o yaml")


def selection(inspection: Inspection, installed: Installation) -> Iterator[Result]:
    """Check that the webhook selects the namespaces of the opted-in VMs, and that Longhorn's exists."""
    namespaces = {each.name: each.labels for each in inventory(inspection).store.namespaces.values()}
    selectors = [mapping(each, "namespaceSelector") for each in installed.webhooks if text(each, "name") == VM_WEBHOOK]
    called = {name for name, labels in namespaces.items() if any(labels_match(each, labels) for each in selectors)}
    store = inventory(inspection).store
    vms = sorted(store.virtual_machines.values(), key=lambda vm: vm.key)
    opted_in = [vm for vm in vms if opted_in_by(vm, store, inspection.settings) is not OptedInBy.NOTHING]
    if uncalled := [f"{vm.namespace}/{vm.name}" for vm in opted_in if vm.namespace not in called]:
        yield failure(
            f"the API server does not call the webhook for opted-in VMs: {len(uncalled)} ({listed(uncalled)})",
            "Change webhook.namespaceSelector or webhook.excludedNamespaces to select the VMs' namespaces.",
        )
    else:
        yield ok(f"the selectors of the configuration include all opted-in VMs ({len(opted_in)})")
    keys = installed.settings.opt_in_annotations
    manifests = sorted(inventory(inspection).vms.items())
    mistakes = {key: mistake for key, vm in manifests if (mistake := opt_in_mistake(vm, keys))}
    if mistakes:
        (namespace, name), mistake = next(iter(mistakes.items()))
        names = listed(["/".join(key) for key in mistakes])
        yield warning(
            f"VMs with a mistake in their opt-in: {len(mistakes)} ({names}); {mistake}",
            f"To correct the first: kubevirt-scheduler opt-in {name} -n {namespace} --yes. "
            "Or correct the manifest in git, if a program applies it.",
        )
    longhorn = installed.settings.longhorn_namespace
    if longhorn not in namespaces:
        yield failure(f'namespace "{longhorn}" not found', "Set settings.longhornNamespace to Longhorn's namespace.")


def other_webhooks(inspection: Inspection, installed: Installation) -> Iterator[Result]:
    """Check that this webhook is installed once, and is called again after those with later names."""
    configurations = read_list(inspection.cluster, CONFIGURATIONS)
    names = [
        (text(each, "metadata", "name"), {text(one, "name") for one in mappings(each, "webhooks")})
        for each in configurations
    ]
    twins = sorted(name for name, webhooks in names if VM_WEBHOOK in webhooks)
    if others := [name for name in twins if name != inspection.configuration]:
        yield failure(
            f"the webhook is installed more than once: {listed(twins)}",
            f"Uninstall one of the releases: each decides on each VM. To check {others[0]}: --webhook-configuration.",
        )
    later = [
        f"{text(item, 'metadata', 'name')}/{text(webhook, 'name')}"
        for item in configurations
        if text(item, "metadata", "name") > inspection.configuration
        for webhook in mappings(item, "webhooks")
        if any({"pods", "pods/*", "*", "*/*"} & {*rule["resources"]} for rule in mappings(webhook, "rules"))
    ]
    if later and any(text(webhook, "reinvocationPolicy") != "IfNeeded" for webhook in installed.webhooks):
        yield warning(
            f"the API server calls other webhooks for pods after this one: {len(later)} ({listed(sorted(later))})",
            "Set reinvocationPolicy: IfNeeded, as the chart does, so that this webhook checks their changes.",
        )
    else:
        yield ok(f"no other webhook changes pods unseen; {len(later)} are called after this one")


def undecided(inspection: Inspection, installation: Installation) -> Iterator[Result]:
    """Name the opted-in VMs that started without a decision since the chart was installed."""
    settings = installation.settings
    installed = text(installation.configuration, "metadata", "creationTimestamp")
    if settings.action is Action.OBSERVE:
        return
    store = inventory(inspection).store
    launchers = store.pods.of_app(VIRT_LAUNCHER)
    pods = [pod for pod in launchers if pod.created >= installed and is_undecided(pod, store, settings)]
    names = sorted(f"{pod.namespace}/{pod.vm or pod.name}" for pod in pods)
    if names:
        yield warning(
            f"opted-in VMs started without a decision: {len(names)} ({listed(names)})",
            "Check the findings above. To have a VM placed, restart it.",
        )
    else:
        yield ok("every opted-in VM that started since the installation has a decision")
