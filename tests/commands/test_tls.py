"""The TLS options of `serve`: contradictory or invalid options are rejected with an error that names them."""

from pathlib import Path

import click
import pytest

from webhook.commands.serve.certificate_options import TlsOptions

UNSET = {"tls_dir": None, "tls_secret": None, "tls_names": (), "webhook_configuration": None}
WITH_SECRET = {"tls_secret": "shop/tls", "tls_names": ("webhook.shop.svc",)}


@pytest.mark.parametrize(
    "options", [{}, WITH_SECRET, WITH_SECRET | {"webhook_configuration": "x"}, {"tls_dir": Path("tls")}]
)
def test_consistent_options_are_accepted(options):
    assert TlsOptions(**UNSET | options).secret == (("shop", "tls") if "tls_secret" in options else None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (WITH_SECRET | {"tls_dir": Path("tls")}, "not both"),
        (WITH_SECRET | {"tls_names": ()}, "--tls-secret requires --tls-name"),
        ({"webhook_configuration": "x"}, "--webhook-configuration requires --tls-secret or --tls-dir"),
        *(
            (WITH_SECRET | {"tls_secret": secret}, "expected NAMESPACE/NAME, got")
            for secret in ("", "tls", "/tls", "shop/", "a/b/c")
        ),
        ({"tls_names": ("webhook.shop.svc",)}, "--tls-name requires --tls-secret"),
    ],
)
def test_contradictory_or_incomplete_options_are_rejected(options, message):
    with pytest.raises(click.UsageError, match=message):
        TlsOptions(**UNSET | options)


@pytest.mark.parametrize("name", ["", " ", "https://x", "[::1]", "a b", f"{'a.' * 127}b"])
def test_an_invalid_dns_name_is_rejected_in_one_line(name):
    with pytest.raises(click.UsageError) as error:
        TlsOptions(**UNSET | WITH_SECRET | {"tls_names": ("webhook.shop.svc", name)})
    assert error.value.format_message().startswith(f"--tls-name: {name[:60]!a}")
    assert "\n" not in error.value.format_message()
