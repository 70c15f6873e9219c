"""The two objects are read and written whole, and each refusal is told with what to do about it."""

import base64
from copy import deepcopy

import pytest

from certs.cluster import ApiError, Cause, CertificateError, CertificateObjects, ca_bundles, hosts, with_ca_bundle
from tests.support.fake_certificate_cluster import (
    CONFIGURATION,
    CONFIGURATION_PATH,
    NAME,
    NAMESPACE,
    SECRET_PATH,
    TwoObjects,
    configuration,
)
from webhook.cluster.client import ClusterError

SECRET, REGISTRATION = f"Secret {NAMESPACE}/{NAME}", f"MutatingWebhookConfiguration {CONFIGURATION}"


@pytest.fixture
def api():
    return TwoObjects()


@pytest.fixture
def place(api):
    return CertificateObjects(api, (NAMESPACE, NAME), CONFIGURATION)


def trouble(call, *arguments):
    with pytest.raises(CertificateError) as caught:
        call(*arguments)
    return caught.value.cause, str(caught.value)


def test_both_are_read_and_written_where_they_are(api, place):
    secret, registration = place.read_secret(), place.read_configuration()
    place.write_secret(secret | {"data": {"a": "eA=="}})
    place.write_configuration(registration | {"webhooks": []})
    assert api.secret["data"] == {"a": "eA=="}
    assert api.configuration["webhooks"] == []
    assert [path for _, path in api.calls] == [SECRET_PATH, CONFIGURATION_PATH] * 2


def test_where_no_configuration_is_named_none_is_read(api):
    assert CertificateObjects(api, (NAMESPACE, NAME), None).read_configuration() is None
    assert api.calls == []


def test_who_comes_second_is_told_so_and_changes_nothing(api, place):
    first, second = place.read_secret(), place.read_secret()
    place.write_secret(first | {"data": {"a": "MQ=="}})
    assert trouble(place.write_secret, second | {"data": {"a": "Mg=="}}) == (
        Cause.CONFLICT,
        f"{SECRET} was changed by somebody else since it was read",
    )
    assert api.secret["data"] == {"a": "MQ=="}


def test_what_is_missing_is_told_with_what_makes_it(api, place):
    secret = place.read_secret()
    api.objects.clear()
    for call in (place.read_secret, lambda: place.write_secret(secret)):
        assert trouble(call) == (Cause.MISSING, f"there is no {SECRET}; helm upgrade makes it")
    assert trouble(place.read_configuration) == (Cause.MISSING, f"there is no {REGISTRATION}; helm upgrade makes it")


REFUSALS = {
    401: (Cause.FORBIDDEN, "give this service account the right to get it, as the chart does"),
    403: (Cause.FORBIDDEN, "give this service account the right to get it, as the chart does"),
    422: (Cause.REFUSED, "the API server does not take it: no"),
    429: (Cause.UNREACHABLE, "it is asked again"),
    500: (Cause.UNREACHABLE, "it is asked again"),
    0: (Cause.UNREACHABLE, "it is asked again"),
}


@pytest.mark.parametrize(("code", "expected"), REFUSALS.items(), ids=map(str, REFUSALS))
def test_a_refusal_names_the_object_and_what_to_do(api, place, code, expected):
    api.before[0] = ApiError(code, "no")
    cause, text = trouble(place.read_secret)
    assert cause is expected[0]
    assert text.startswith(f"{SECRET}: ")
    assert text.endswith(expected[1])


def test_a_missing_right_to_write_is_another_one_than_to_read(api, place):
    secret = place.read_secret()
    api.before[1] = ApiError(403, "forbidden")
    assert "the right to update it" in trouble(place.write_secret, secret)[1]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000], ids=["nothing", "a proxy's page", "deep"])
def test_an_answer_that_is_no_object_is_told(body):
    class Proxy(TwoObjects):
        def get(self, *_):
            return body

    cause, text = trouble(CertificateObjects(Proxy(), (NAMESPACE, NAME), None).read_secret)
    assert (cause, text) == (Cause.UNREACHABLE, f"{SECRET}: the answer is not what an API server sends")


def test_the_clients_own_error_is_one_that_certs_knows():
    error = ClusterError(403, "no")
    assert isinstance(error, ApiError)
    assert (error.code, str(error)) == (403, "no")


def test_the_ca_bundle_of_each_webhook_is_read():
    registration = with_ca_bundle(configuration(), b"pem")
    registration["webhooks"].append({"name": "other"})
    registration["webhooks"].append({"name": "broken", "clientConfig": {"caBundle": "!"}})
    assert ca_bundles(registration) == {
        "vms.kubevirt-scheduler": b"pem",
        "share-managers.kubevirt-scheduler": b"pem",
        "other": b"",
        "broken": b"",
    }
    assert ca_bundles({}) == ca_bundles({"webhooks": None}) == {}


def test_the_names_by_which_the_webhooks_are_called_are_read():
    urls = {"url": "https://[::1]:8443/mutate"}, {"url": "https://a.example/mutate"}
    configs = {"service": {"namespace": "ns", "name": "one"}}, *urls, {}, None
    assert hosts({"webhooks": [{"clientConfig": one} for one in configs]}) == {"one.ns.svc", "::1", "a.example"}
    assert hosts({"webhooks": None}) == set()


def test_a_ca_bundle_is_written_into_each_webhook_and_nothing_else_is_changed():
    before = configuration()
    before["webhooks"][0]["matchConditions"] = [{"name": "x", "expression": "true"}]
    kept = deepcopy(before)
    after = with_ca_bundle(before, b"pem")
    assert before == kept
    for webhook in after["webhooks"]:
        assert webhook["clientConfig"].pop("caBundle") == base64.b64encode(b"pem").decode()
    assert after == before


@pytest.mark.parametrize("empty", [{}, {"webhooks": None}, {"webhooks": []}])
def test_a_configuration_without_webhooks_stays_as_it_is(empty):
    assert with_ca_bundle(empty, b"pem") == empty
