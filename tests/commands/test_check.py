"""`check` creates a VM's pod as a dry run, and tells its decision, or where to look if there is none."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.builders import Object, catalog, request
from tests.support.fake_api_server import ApiServer, body, refusal, status
from webhook.cluster.client import ClusterClient
from webhook.cluster.documents import BadInput
from webhook.commands.check import PATIENCE, PAUSE, attempt, check, retry, vm_pod
from webhook.placement.affinity import DECISION
from webhook.placement.decision import Reason
from webhook.placement.injector import inject
from webhook.placement.settings import OPT_IN_ANNOTATIONS, Settings

KEY = OPT_IN_ANNOTATIONS[0]
DECIDED = "NoShareManager: nobody serves it yet"
CALLED = body({"metadata": {"annotations": {DECISION: DECIDED}}}, 201)
NOT_CALLED = body({"metadata": {"annotations": {KEY: "true"}}}, 201)
AWAY = refusal(
    status(500, 'failed calling webhook "vms.kubevirt-scheduler.io": no endpoints available', "InternalError")
)


class Clock:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def invoked(api: ApiServer, folder: Path, *arguments: str, **rest: Any) -> Result:
    return CliRunner().invoke(check, ["--kubeconfig", api.kubeconfig(folder), "--timeout", "0", *arguments], **rest)


def looked(api: ApiServer, folder: Path, patience: float, clock: Clock) -> tuple[str, str]:
    cluster = ClusterClient.connect(api.kubeconfig(folder))
    return retry(partial(attempt, cluster, "shop", KEY), patience, clock, clock.sleep)


def test_the_decision_that_the_pod_came_back_with_is_told(tmp_path: Path) -> None:
    with ApiServer() as api:
        api.script("post", "pods", CALLED)
        result = invoked(api, tmp_path, "-n", "shop")
    assert result.output == f"A pod like a VM's came back from namespace shop with this decision: {DECIDED}\n"
    assert result.exit_code == 0
    asked = api.last("post", "pods")
    assert (asked.path, asked.query) == ("/api/v1/namespaces/shop/pods", {"dryRun": "All"})


def test_a_pod_that_came_back_as_it_was_is_a_failure_that_says_where_to_look(tmp_path: Path) -> None:
    with ApiServer() as api:
        api.script("post", "pods", NOT_CALLED)
        result = invoked(api, tmp_path, "--webhook-configuration", "co-scheduler")
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: namespace default: the pod came back without the annotation {DECISION}")
    assert "kubectl get mutatingwebhookconfiguration co-scheduler -o yaml" in result.output


def test_what_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    clock = Clock()
    with ApiServer() as api:
        api.script("post", "pods", AWAY, NOT_CALLED, CALLED)
        decision, _ = looked(api, tmp_path, PATIENCE, clock)
    assert decision == DECIDED
    assert clock.now == 2 * PAUSE


def test_what_stays_away_is_given_up_and_named(tmp_path: Path) -> None:
    clock = Clock()
    with ApiServer() as api:
        api.script("post", "pods", *[AWAY] * 100)
        decision, problem = looked(api, tmp_path, PATIENCE, clock)
    assert decision == ""
    assert "no endpoints available" in problem
    assert PATIENCE - PAUSE < clock.now <= PATIENCE


@pytest.mark.parametrize("code", [403, 404, 422])
def test_a_pod_that_is_refused_is_not_tried_again(tmp_path: Path, code: int) -> None:
    with ApiServer() as api:
        api.script("post", "pods", refusal(status(code, "pods is forbidden: no")), CALLED)
        with pytest.raises(BadInput, match="does not take the pod: pods is forbidden: no"):
            looked(api, tmp_path, PATIENCE, Clock())


@pytest.mark.parametrize("key", OPT_IN_ANNOTATIONS)
def test_the_pod_is_one_that_the_webhook_decides_on(key: str) -> None:
    received: Object = request(vm_pod(key))
    decision = inject(received, catalog(), Settings()).decision
    assert decision.recorded
    assert decision.reason is Reason.NO_SHARE_MANAGER


def test_a_setting_that_can_not_be_used_ends_it(tmp_path: Path) -> None:
    with ApiServer() as api:
        result = invoked(api, tmp_path, env={"CO_SCHEDULE_OPT_IN_ANNOTATIONS": "not an annotation"})
    assert "CO_SCHEDULE_OPT_IN_ANNOTATIONS" in str(result.exception)
