"""`doctor --calls` creates a VM's pod as a dry run with the user's own account, and waits for a decision."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.builders import Object, catalog, request
from tests.support.fake_api_server import ApiServer, body, error_response, status
from tests.support.fake_clock import FakeClock
from webhook.cluster.client import ClusterClient
from webhook.commands.doctor.command import doctor
from webhook.commands.doctor.probe import RETRY_INTERVAL, attempt, probe_pod, retry
from webhook.placement.affinity import DECISION
from webhook.placement.injector import inject
from webhook.placement.reasons import Reason
from webhook.placement.settings import OPT_IN_ANNOTATIONS, Settings
from webhook.placement.wording import OBSERVED
from webhook.reading.documents import BadInput

KEY = OPT_IN_ANNOTATIONS[0]
TIMEOUT = 60.0
DECISION_TEXT = "NoShareManager: nobody serves it yet"
WITH_DECISION = body({"metadata": {"annotations": {DECISION: DECISION_TEXT}}}, 201)
WITHOUT_DECISION = body({"metadata": {"annotations": {KEY: "true"}}}, 201)
WEBHOOK_DOWN = error_response(
    status(500, 'failed calling webhook "vms.kubevirt-scheduler.io": no endpoints available', "InternalError")
)


def run_calls(api: ApiServer, folder: Path, *arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(doctor, ["--kubeconfig", api.kubeconfig(folder), "--calls", "0", *arguments], **options)


def retry_attempts(api: ApiServer, folder: Path, timeout: float, clock: FakeClock) -> tuple[str, str]:
    cluster = ClusterClient.connect(api.kubeconfig(folder))
    return retry(partial(attempt, cluster, "shop", KEY), timeout, clock, clock.sleep)


def test_a_pod_with_a_decision_passes(tmp_path: Path) -> None:
    with ApiServer() as api:
        api.script("post", "pods", WITH_DECISION)
        result = run_calls(api, tmp_path, "-n", "shop")
    assert result.output == "✓ the API server calls the webhook for VMs in namespace shop\n"
    assert result.exit_code == 0
    asked = api.last("post", "pods")
    assert (asked.path, asked.query) == ("/api/v1/namespaces/shop/pods", {"dryRun": "All"})


def test_a_pod_returned_without_a_decision_fails_and_prints_a_kubectl_command(tmp_path: Path) -> None:
    with ApiServer() as api:
        api.script("post", "pods", WITHOUT_DECISION)
        result = run_calls(api, tmp_path, "--webhook-configuration", "co-scheduler")
    assert result.exit_code == 1
    assert result.output.startswith(f"✗ namespace default: the response lacks the annotation {DECISION}")
    assert "dry run.  [default: default]" in CliRunner().invoke(doctor, ["--help"]).output
    assert "kubectl get mutatingwebhookconfiguration co-scheduler -o yaml" in result.output


def test_a_decision_that_the_webhook_only_observed_passes(tmp_path: Path) -> None:
    warning = f'299 - "{OBSERVED}{DECISION_TEXT}"'
    with ApiServer() as api:
        api.script("post", "pods", body({"metadata": {}}, 201, Warning=warning))
        assert run_calls(api, tmp_path).exit_code == 0


def test_the_warning_of_another_webhook_is_no_decision(tmp_path: Path) -> None:
    with ApiServer() as api:
        api.script("post", "pods", body({"metadata": {}}, 201, Warning='299 - "would violate PodSecurity"'))
        assert run_calls(api, tmp_path).exit_code == 1


def test_calls_are_retried_until_the_webhook_responds(tmp_path: Path) -> None:
    clock = FakeClock(0.0)
    with ApiServer() as api:
        api.script("post", "pods", WEBHOOK_DOWN, WITHOUT_DECISION, WITH_DECISION)
        decision, _ = retry_attempts(api, tmp_path, TIMEOUT, clock)
    assert decision == DECISION_TEXT
    assert clock.now == 2 * RETRY_INTERVAL


def test_calls_return_the_problem_after_the_timeout(tmp_path: Path) -> None:
    clock = FakeClock(0.0)
    with ApiServer() as api:
        api.script("post", "pods", *[WEBHOOK_DOWN] * 100)
        decision, problem = retry_attempts(api, tmp_path, TIMEOUT, clock)
    assert decision == ""
    assert "no endpoints available" in problem
    assert TIMEOUT - RETRY_INTERVAL < clock.now <= TIMEOUT


@pytest.mark.parametrize("code", [403, 404, 422])
def test_a_rejected_pod_is_not_retried(tmp_path: Path, code: int) -> None:
    with ApiServer() as api:
        api.script("post", "pods", error_response(status(code, "pods is forbidden: no")), WITH_DECISION)
        with pytest.raises(BadInput, match="rejected the pod: pods is forbidden: no"):
            retry_attempts(api, tmp_path, TIMEOUT, FakeClock(0.0))


@pytest.mark.parametrize("key", OPT_IN_ANNOTATIONS)
def test_the_webhook_records_a_decision_on_the_probe_pod(key: str) -> None:
    received: Object = request(probe_pod(key))
    (container,) = probe_pod(key)["spec"]["containers"]
    for amounts in container["resources"].values():  # a ResourceQuota may require each of them
        assert set(amounts) == {"cpu", "memory"}
    decision = inject(received, catalog(), Settings()).decision
    assert decision.recorded
    assert decision.reason is Reason.NO_SHARE_MANAGER


def test_an_invalid_setting_fails(tmp_path: Path) -> None:
    with ApiServer() as api:
        result = run_calls(api, tmp_path, env={"CO_SCHEDULE_OPT_IN_ANNOTATIONS": "not an annotation"})
    assert "CO_SCHEDULE_OPT_IN_ANNOTATIONS" in str(result.exception)
