"""The webhook that a snapshot describes."""

import pytest

from tests.support.builders import Object
from webhook.fleet.webhook import Activity, Webhook
from webhook.placement.settings import Settings


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
