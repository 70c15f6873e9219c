"""An injection as JSON, as `inject` and `explain` print it."""

from webhook.placement.injector import Injection
from webhook.placement.objects.fields import JsonObject
from webhook.placement.reasons import ClaimFinding


def as_json(injection: Injection) -> JsonObject:
    """Return an injection as JSON for people and programs, with the patch unencoded and the full decision."""
    decision = injection.decision
    return {
        "allowed": True,
        "decision": {
            "outcome": decision.outcome,
            "reason": decision.reason,
            "message": decision.message,
            "node": decision.node,
            "mode": decision.mode,
            "conflict": decision.conflict,
            "claims": [_claim(finding) for finding in decision.claims],
        },
        "patch": injection.patch,
        "warnings": list(injection.warnings),
    }


def _claim(finding: ClaimFinding) -> JsonObject:
    names = ("claim", "volume", "node", "source", "reason")
    return {name: getattr(finding, name) for name in names}
