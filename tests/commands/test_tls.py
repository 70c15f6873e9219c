"""Which certificate `serve` shows: what does not fit together is said, and nothing is guessed."""

from pathlib import Path

import click
import pytest

from webhook.commands.tls import TlsOptions

NOTHING = {"tls_dir": None, "tls_secret": None, "tls_names": (), "webhook_configuration": None}
LIVES = {"tls_leaf_days": 30.0, "tls_ca_days": 365.0, "tls_spread": 300.0}
OURS = {"tls_secret": "shop/tls", "tls_names": ("webhook.shop.svc",)}


@pytest.mark.parametrize("chosen", [{}, OURS, OURS | {"webhook_configuration": "x"}, {"tls_dir": Path("tls")}])
def test_what_fits_together_is_taken(chosen):
    assert TlsOptions(**NOTHING | LIVES | chosen).secret == (("shop", "tls") if "tls_secret" in chosen else None)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (OURS | {"tls_dir": Path("tls")}, "choose one of them"),
        (OURS | {"tls_names": ()}, "--tls-secret needs --tls-name"),
        ({"webhook_configuration": "x"}, "--webhook-configuration needs --tls-secret or --tls-dir"),
        *((OURS | {"tls_secret": secret}, "is not NAMESPACE/NAME") for secret in ("", "tls", "/tls", "shop/", "a/b/c")),
        ({"tls_names": ("webhook.shop.svc",)}, "--tls-name needs --tls-secret"),
    ],
)
def test_what_does_not_fit_together_is_named(chosen, said):
    with pytest.raises(click.UsageError, match=said):
        TlsOptions(**NOTHING | LIVES | chosen)


@pytest.mark.parametrize("name", ["", " ", "https://x", "[::1]", "a b", f"{'a.' * 127}b"])
def test_a_name_that_is_none_is_refused_in_one_line(name):
    with pytest.raises(click.UsageError) as refused:
        TlsOptions(**NOTHING | LIVES | OURS | {"tls_names": ("webhook.shop.svc", name)})
    assert refused.value.format_message().startswith(f"--tls-name: {name[:60]!a}")
    assert "\n" not in refused.value.format_message()


@pytest.mark.parametrize("which", LIVES)
@pytest.mark.parametrize("life", [-1.0, 1e9, float("inf"), float("nan")])
def test_a_life_that_is_none_is_named(which, life):
    with pytest.raises(click.UsageError, match=f"--{which.replace('_', '-')}.*: "):
        TlsOptions(**NOTHING | LIVES | OURS | {which: life})
