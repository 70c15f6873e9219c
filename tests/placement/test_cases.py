"""Golden cases: a folder with a pod, a cluster, optional settings, and the expected answer of the webhook."""

from pathlib import Path

import msgspec
import pytest
import yaml

from tests.support import paths
from tests.support.builders import catalog, inject_request, request
from webhook.commands.admission_requests import as_json
from webhook.placement.settings import read_settings

CASES = sorted(paths.CASES.iterdir())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_golden_case_matches_its_expected_answer(case: Path) -> None:
    pod = yaml.safe_load(case.joinpath("pod.yaml").read_text())
    cluster = yaml.safe_load_all(case.joinpath("cluster.yaml").read_text())
    settings_file = case / "settings.yaml"
    settings = read_settings(yaml.safe_load(settings_file.read_text()) if settings_file.exists() else {})
    injection = inject_request(request(pod, pod["metadata"]["namespace"]), catalog(*cluster), settings)
    assert injection.error is None
    assert msgspec.to_builtins(as_json(injection)) == yaml.safe_load(case.joinpath("expected.yaml").read_text())
