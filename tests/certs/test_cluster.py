"""Reading and writing the Secret and the configuration, and the error message of each failure."""

import pytest

from certs import ApiError
from certs.cluster import CertificateObjects, ca_bundles, hosts, with_ca_bundle
from certs.secret import Cause, CertificateError
from tests.support.fake_certificate_cluster import (
    CONFIGURATION,
    NAME,
    NAMESPACE,
    FakeCertificateCluster,
    configuration,
)
from webhook.cluster.credentials import ClusterError

SECRET, REGISTRATION = f"Secret {NAMESPACE}/{NAME}", f"MutatingWebhookConfiguration {CONFIGURATION}"


@pytest.fixture
def api():
    return FakeCertificateCluster()


@pytest.fixture
def objects(api):
    return CertificateObjects(api, (NAMESPACE, NAME), CONFIGURATION)


def raised_error(call, *arguments):
    with pytest.raises(CertificateError) as caught:
        call(*arguments)
    return caught.value.cause, str(caught.value)


def test_a_missing_object_is_reported_with_the_command_that_creates_it(api, objects):
    secret = objects.read_secret()
    api.objects.clear()
    for call, name in (
        (objects.read_secret, SECRET),
        (lambda: objects.write_secret(secret), SECRET),
        (objects.read_configuration, REGISTRATION),
    ):
        assert raised_error(call) == (Cause.MISSING, f"{name} not found; helm upgrade creates it")


CREDENTIALS = "credentials of the kubeconfig, or in a pod of its ServiceAccount"
ERROR_RESPONSES = {
    401: (Cause.FORBIDDEN, f"the API server does not accept the {CREDENTIALS}: no; renew them"),
    403: (Cause.FORBIDDEN, "no; grant that user the right to {} it"),
    422: (Cause.REFUSED, "the API server rejected it: no"),
    429: (Cause.UNREACHABLE, "the request to the API server failed: no"),
    500: (Cause.UNREACHABLE, "the request to the API server failed: no"),
    0: (Cause.UNREACHABLE, "the request to the API server failed: no"),
}


@pytest.mark.parametrize(("code", "expected"), ERROR_RESPONSES.items(), ids=map(str, ERROR_RESPONSES))
def test_an_error_names_the_object_and_what_to_do(api, objects, code, expected):
    cause, text = expected
    secret = objects.read_secret()
    for verb, call in ("get", objects.read_secret), ("update", lambda: objects.write_secret(secret)):
        api.fail_before = {len(api.calls): ApiError(code, "no")}
        assert raised_error(call) == (cause, f"{SECRET}: {text.format(verb)}")


def test_the_error_of_the_client_is_an_api_error_of_certs():
    assert isinstance(ClusterError(403, "no"), ApiError)


def test_ca_bundles_returns_the_ca_bundle_of_each_webhook():
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


def test_hosts_returns_the_names_of_services_and_urls():
    urls = {"url": "https://[::1]:8443/mutate"}, {"url": "https://a.example/mutate"}
    configs = {"service": {"namespace": "ns", "name": "one"}}, *urls, {}, None
    assert hosts({"webhooks": [{"clientConfig": one} for one in configs]}) == {"one.ns.svc", "::1", "a.example"}
    assert hosts({"webhooks": None}) == set()


def test_with_ca_bundle_does_not_change_a_configuration_without_webhooks():
    for empty in {}, {"webhooks": None}, {"webhooks": []}:
        assert with_ca_bundle(empty, b"pem") == empty
