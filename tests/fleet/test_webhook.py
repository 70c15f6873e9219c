"""The webhook that a snapshot describes."""

import pytest

from tests.support.builders import Object
from webhook.fleet.webhook import ANYWHERE, Activity, Webhook
from webhook.placement.settings import Action, Settings

GUARDED, SOURCE = {"CO_SCHEDULE_NODE_GUARD": "false"}, {"source": "Deployment a/b"}
SENTENCES: dict[str, tuple[Object, str, Action]] = {
    "called": (SOURCE, "Settings: Deployment a/b.", Action.INJECT),
    "of a version": (SOURCE | {"version": "1.2"}, "Settings: Deployment a/b, version 1.2.", Action.INJECT),
    "observing": (
        {"settings": Settings(action=Action.OBSERVE)},
        f"Settings: the defaults. The webhook only observes, {ANYWHERE}.",
        Action.OBSERVE,
    ),
    "not called": (
        {"activity": Activity.NOT_CALLED, "detail": "no replica is ready"},
        f"Settings: the defaults. The API server does not call the webhook, because no replica is ready, {ANYWHERE}.",
        Action.OBSERVE,
    ),
    "not installed": (
        {"activity": Activity.NOT_INSTALLED, "variables": GUARDED},
        f"The webhook is not installed, {ANYWHERE}. Settings: environment variables of this command.",
        Action.OBSERVE,
    ),
    "unknown": (
        {"activity": Activity.UNKNOWN, "detail": "you may not read it"},
        "Settings: the defaults, because you may not read it.",
        Action.INJECT,
    ),
    "in no snapshot": ({"activity": Activity.UNKNOWN}, "", Action.INJECT),
}


@pytest.mark.parametrize(("fields", "sentence", "predicted"), SENTENCES.values(), ids=SENTENCES)
def test_a_webhook_that_changes_no_pod_is_predicted_as_one_that_observes(
    fields: Object, sentence: str, predicted: Action
) -> None:
    found = Webhook(**({"settings": Settings()} | fields))
    assert (found.sentence, found.predicting.action) == (sentence, predicted)


def test_a_snapshot_keeps_the_webhook_and_without_one_the_variables_of_the_shell_count() -> None:
    kept = Webhook.of_environment(GUARDED, Activity.NOT_CALLED, "no replica is ready")
    assert Webhook.from_snapshot({"webhook": kept.as_json()}, {}) == kept
    assert Webhook.from_snapshot(None, {}) == Webhook(Settings(), Activity.UNKNOWN)
    assert Webhook.from_snapshot(None, GUARDED).detail == "the files contain none"


@pytest.mark.parametrize(
    "changes",
    [
        {"activity": "dreaming"},
        {"settings": {"CO_SCHEDULE_ACTION": "destroy"}},
        {"settings": {"CO_SCHEDULE_NODE_GUARD": False}},  # in edited YAML
        {"settings": {"CO_SCHEDULE_RELEASE_AFTER": [2]}},
    ],
)
def test_a_snapshot_of_another_version_leaves_the_variables_of_the_shell(changes: Object) -> None:
    described = Webhook(Settings(), Activity.CALLED).as_json() | changes
    found = Webhook.from_snapshot({"webhook": described}, {"CO_SCHEDULE_STEERING": "false", "HOME": "/"})
    assert (found.activity, found.settings.steering) == (Activity.UNKNOWN, False)
    assert found.detail.startswith("this version cannot read the snapshot's: ")
