"""Read and write one Secret and one MutatingWebhookConfiguration, as plain dicts."""

import base64
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from certs import CONFIGURATIONS, ApiError
from certs.secret import Cause, CertificateError, JsonObject, decoded

TIMEOUT = 5.0  # seconds per request; a pass is due every three


class ApiClient(Protocol):
    """The API server requests that `certs` needs: `webhook.cluster.client.ClusterClient`, or a fake in the tests."""

    def get(self, path: str, timeout: float = ...) -> JsonObject | None:
        """Read one object; None if it does not exist. Raises ApiError."""

    def send(self, method: str, path: str, body: JsonObject, timeout: float) -> JsonObject:
        """Write one object and return the stored version. Raises ApiError."""


class CertificateObjects(Struct, frozen=True):
    """The Secret that stores a bundle, and what publishes the bundle's CAs. Each method raises CertificateError."""

    api: ApiClient
    secret: tuple[str, str] | None  # the Secret's namespace and name, if there is one
    configuration: str | None  # the MutatingWebhookConfiguration's name, if there is one

    def read_secret(self) -> JsonObject:
        """Read the Secret."""
        return self._request(*self._secret())

    def read_configuration(self) -> JsonObject | None:
        """Read the configuration; None without a configuration."""
        return self._request(*self._configuration()) if self.configuration else None

    def write_secret(self, secret: JsonObject) -> None:
        """Replace the Secret, unless it has changed since it was read."""
        self._request(*self._secret(), secret)

    def write_configuration(self, configuration: JsonObject) -> None:
        """Replace the configuration, unless it has changed since it was read."""
        self._request(*self._configuration(), configuration)

    def _secret(self) -> tuple[str, str]:
        namespace, name = self.secret or ("", "")
        return f"/api/v1/namespaces/{namespace}/secrets/{name}", f"Secret {namespace}/{name}"

    def _configuration(self) -> tuple[str, str]:
        return f"{CONFIGURATIONS}/{self.configuration}", f"MutatingWebhookConfiguration {self.configuration}"

    def _request(self, path: str, name: str, body: JsonObject | None = None) -> JsonObject:
        """Read an object, or replace it with a body. `name` is for the error message."""
        try:
            stored = self.api.send("PUT", path, body, TIMEOUT) if body else self.api.get(path, TIMEOUT)
            if stored is None:
                raise ApiError(404, "not found")  # noqa: TRY301 (as if deleted since it was read)
        except ApiError as error:
            raise CertificateError(*_classify(error, name, "update" if body else "get")) from None
        return stored


def _classify(error: ApiError, name: str, verb: str) -> tuple[Cause, str]:
    match error.code:
        case 401:
            used = "credentials of the kubeconfig, or in a pod of its ServiceAccount"
            return Cause.FORBIDDEN, f"{name}: the API server does not accept the {used}: {error}; renew them"
        case 403:
            return Cause.FORBIDDEN, f"{name}: {error}; grant that user the right to {verb} it"
        case 404:
            return Cause.MISSING, f"{name} not found; helm upgrade creates it"
        case 409:
            return Cause.CONFLICT, f"another client has changed {name} since it was read"
        case 400 | 405 | 413 | 415 | 422:
            return Cause.REFUSED, f"{name}: the API server rejected it: {error}"
    return Cause.UNREACHABLE, f"{name}: the request to the API server failed: {error}"


def ca_bundles(configuration: JsonObject) -> dict[str, bytes]:
    """Return the `caBundle` of each webhook by the webhook's name; empty if it is missing or not base64."""
    webhooks = configuration.get("webhooks") or ()
    return {str(webhook.get("name", "")): decoded(webhook.get("clientConfig"), "caBundle") for webhook in webhooks}


def hosts(configuration: JsonObject) -> set[str]:
    """Return the host names in the webhooks' `clientConfig`: of a Service or of a URL."""
    configs = [webhook.get("clientConfig") or {} for webhook in configuration.get("webhooks") or ()]
    services = [config["service"] for config in configs if config.get("service")]
    service_names = {f"{service.get('name')}.{service.get('namespace')}.svc" for service in services}
    return service_names | {urlsplit(config["url"]).hostname or "" for config in configs if config.get("url")}


def with_ca_bundle(configuration: JsonObject, ca_bundle: bytes) -> JsonObject:
    """Return a copy of the configuration with this `caBundle` in each webhook. Nothing else changes."""
    text = base64.b64encode(ca_bundle).decode()
    webhooks = [
        webhook | {"clientConfig": (webhook.get("clientConfig") or {}) | {"caBundle": text}}
        for webhook in configuration.get("webhooks") or ()
    ]
    return configuration | {"webhooks": webhooks} if webhooks else configuration
