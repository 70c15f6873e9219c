"""The option `--lease` of `serve`: only the name of an object on a live cluster is accepted."""

from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.server_process import write_cluster
from webhook.cli import commands


def run_serve(*arguments: Any) -> Result:
    return CliRunner().invoke(commands, ["serve", *map(str, arguments)])


@pytest.mark.parametrize("lease", ["", "webhook", "/webhook", "shop/", "a/b/c"])
def test_a_lease_needs_a_namespace_and_a_name(lease: str) -> None:
    result = run_serve("--lease", lease)
    assert result.exit_code == 2
    assert "expected NAMESPACE/NAME, got" in result.stderr
    assert "--lease" in result.stderr


def test_a_snapshot_takes_no_lease(tmp_path: Any) -> None:
    result = run_serve("--snapshot", write_cluster(tmp_path), "--lease", "shop/webhook")
    assert result.exit_code == 2
    assert "--lease requires a live cluster: a snapshot has no pods to release" in result.stderr
