"""The options of `serve`: contradictory or invalid ones are rejected with an error that names them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command_line import run_cli
from tests.support.server_process import write_cluster

WITH_SECRET = ("--tls-secret=shop/tls", "--tls-name=webhook.shop.svc")


@pytest.mark.parametrize("value", ["", "webhook", "/webhook", "shop/", "a/b/c"])
@pytest.mark.parametrize("command", ["serve --lease", "serve --tls-secret", "certs status --secret"])
def test_an_object_needs_a_namespace_and_a_name(command: str, value: str) -> None:
    result = run_cli(*command.split(), value)
    assert result.exit_code == 2
    assert "expected NAMESPACE/NAME, got" in result.stderr
    assert command.rsplit(maxsplit=1)[-1] in result.stderr


def test_a_snapshot_takes_no_lease(tmp_path: Path) -> None:
    result = run_cli("serve", "--snapshot", write_cluster(tmp_path), "--lease", "shop/webhook")
    assert result.exit_code == 2
    assert "--lease requires a live cluster: a snapshot has no pods to release" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*WITH_SECRET, "--tls-dir=tls"], "not both"),
        (WITH_SECRET[:1], "--tls-secret requires --tls-name"),
        (["--webhook-configuration=x"], "--webhook-configuration requires --tls-secret or --tls-dir"),
        *(
            ([*WITH_SECRET, f"--tls-name={name}"], "--tls-name: ")
            for name in ("", " ", "https://x", "[::1]", "a b", f"{'a.' * 127}b")
        ),
    ],
)
def test_contradictory_or_invalid_options_are_rejected_in_one_line(options: Sequence[str], message: str) -> None:
    result = run_cli("serve", *options)
    assert result.exit_code == 2
    assert message in result.stderr.splitlines()[-1]
