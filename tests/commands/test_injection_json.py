"""An injection as JSON, with the full decision and the patch."""

import json

from tests.support.builders import apply_injection, injection_for, share_manager, storage, virt_launcher
from webhook.commands.injection_json import as_json
from webhook.placement.injector import Injection
from webhook.placement.reasons import Reason


def test_as_json_returns_the_full_decision_and_patch() -> None:
    pod = virt_launcher(claims=["disk1", "gone"])
    injection = injection_for(pod, *storage()[:2], share_manager())
    encoded = json.loads(json.dumps(as_json(injection)))
    assert encoded["allowed"] is True
    assert encoded["decision"] == {
        "outcome": "pinned",
        "reason": Reason.CO_SCHEDULED,
        "message": "pinned to node-a, which serves claim disk1",
        "node": "node-a",
        "mode": "required",
        "conflict": False,
        "claims": [
            {"claim": "disk1", "volume": "vol-disk1", "node": "node-a", "source": "share-manager", "reason": None},
            {"claim": "gone", "volume": None, "node": None, "source": None, "reason": Reason.CLAIM_NOT_FOUND},
        ],
    }
    assert apply_injection(pod, Injection(injection.decision, encoded["patch"])) == apply_injection(pod, injection)
    assert encoded["warnings"] == []


def test_as_json_returns_null_for_a_missing_patch() -> None:
    encoded = as_json(injection_for(virt_launcher(opt_in=None)))
    assert (encoded["patch"], encoded["decision"]["node"], encoded["decision"]["claims"]) == (None, None, [])
