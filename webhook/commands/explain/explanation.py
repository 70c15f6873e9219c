"""The explanation of a pod or VM as a JSON object: its node, the steps of the decision on its next pod, and advice."""

from webhook.catalog.inventory import Inventory
from webhook.catalog.store import Store
from webhook.commands.admission_requests import as_json, pod_name
from webhook.commands.explain.sections import Finding, Section, describe_placement, describe_state, describe_steps
from webhook.commands.report.document import describe
from webhook.fleet.forecast_catalog import forecast
from webhook.fleet.move import Surroundings, plan_move
from webhook.fleet.next_pod import as_if_eligible, before_scheduling, creation_request
from webhook.fleet.states import Machine, assess
from webhook.fleet.webhook import Webhook
from webhook.placement import wording
from webhook.placement.catalog import Catalog
from webhook.placement.injector import inject
from webhook.placement.objects.fields import JsonObject, mapping
from webhook.placement.reasons import Outcome
from webhook.placement.settings import Settings
from webhook.placement.trace import Trace


def explain_pod(pod: JsonObject, catalog: Store, settings: Settings) -> JsonObject:
    """Explain an existing pod that runs no VM."""
    found = explain_request(creation_request(before_scheduling(pod), settings), catalog, settings)
    where = Section("Where is the pod?", tuple(map(Finding, describe_placement(pod))))
    return found | {"steps": [where, *found["steps"]]}


def explain_machine(machine: Machine, inventory: Inventory, webhook: Webhook) -> JsonObject:
    """Explain where a VM is, and the decision on its next pod. Without that pod, there is no decision."""
    settings, around, catalog = webhook.settings, Surroundings(webhook.predicting), inventory.store
    status = assess(machine, catalog, around.settings)
    vm = describe(status, plan_move(status, around, catalog), inventory.volume_data())
    stopped = status.start.stopped if status.start else ()
    placement = describe_placement(machine.manifest) if machine.manifest else ("no pod runs the VM",)
    findings = (*placement, *describe_state(vm, stops=bool(stopped)))
    found: JsonObject = {"steps": [], "decision": None, "ifEligible": None, "patch": None, "warnings": []}
    if machine.template is not None:
        request = creation_request(machine.template, settings)
        found = explain_request(request, forecast(catalog, stopped), settings)
    where = Section("Where is the VM?", tuple(map(Finding, findings)))
    own = {"name": "/".join(machine.key), "vm": vm, "steps": [where, *found["steps"]], "advice": [vm["advice"]]}
    return found | own


def explain_request(request: JsonObject, catalog: Catalog, settings: Settings) -> JsonObject:
    """Explain the decision on a request.

    `ifEligible` is the decision if no rule of eligibility ended it; None if no rule does.
    """
    trace, assumed = Trace(), None
    injection = inject(request, catalog, settings, trace)
    eligible, broken = as_if_eligible(mapping(request, "object"), injection.decision.opted_in_by, settings)
    if injection.decision.reason in broken:
        trace = Trace()
        assumed = inject(request | {"object": eligible}, catalog, settings, trace)
    sections = list(describe_steps(trace, broken if assumed else (), request, catalog, settings))
    advice = wording.advice(injection.decision)
    if assumed and assumed.decision.outcome is Outcome.UNCHANGED:
        advice += wording.advice(assumed.decision)
    return as_json(injection) | {
        "name": pod_name(request),
        "vm": None,
        "steps": sections,
        "ifEligible": as_json(assumed)["decision"] if assumed else None,
        "advice": list(dict.fromkeys(advice)),
    }
