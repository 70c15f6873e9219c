"""The installed webhook, found by its MutatingWebhookConfiguration: Service, Deployment, pods and settings."""

from collections.abc import Mapping
from dataclasses import dataclass

from certs.cluster import CONFIGURATIONS
from webhook.commands.doctor.inspection import Inspection
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.settings import Settings, SettingsError, read_settings


@dataclass(frozen=True, slots=True)
class Installation:
    """What the chart installed. `deployment` is empty if it isn't found; `arguments` are those of `serve`."""

    configuration: JsonObject
    namespace: str
    service: str
    deployment: JsonObject
    pods: list[JsonObject]
    settings: Settings
    arguments: Mapping[str, str]

    @property
    def webhooks(self) -> list[JsonObject]:
        """Return the webhooks of the configuration."""
        return mappings(self.configuration, "webhooks")

    @property
    def account(self) -> str:
        """Return the name of the replicas' ServiceAccount."""
        return text(self.deployment, "spec", "template", "spec", "serviceAccountName") or "default"

    @property
    def secret(self) -> tuple[str, str] | None:
        """Return the namespace and name of the Secret with the certificates, None if the replicas have none."""
        if self_signed := self.arguments.get("--tls-secret"):
            namespace, _, name = self_signed.partition("/")
            return namespace, name
        volumes = mappings(self.deployment, "spec", "template", "spec", "volumes")
        names = [text(volume, "secret", "secretName") for volume in volumes if text(volume, "name") == "tls"]
        return (self.namespace, names[0]) if names else None


def find_installation(inspection: Inspection) -> Installation | None:
    """Read what the chart installed; None without the MutatingWebhookConfiguration."""
    configuration = inspection.get(f"{CONFIGURATIONS}/{inspection.configuration}")
    if configuration is None:
        return None
    references = [mapping(webhook, "clientConfig", "service") for webhook in mappings(configuration, "webhooks")]
    namespace, name = next(((text(each, "namespace"), text(each, "name")) for each in references if each), ("", ""))
    service = inspection.get(f"/api/v1/namespaces/{namespace}/services/{name}") if name else None
    labels = mapping(service, "spec", "selector")
    deployment: JsonObject = {}
    pods: list[JsonObject] = []
    if labels:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        deployment = next(iter(inspection.items(path, labelSelector=selector)), {})
        pods = inspection.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
    container = serving_container(mapping(deployment, "spec", "template"))
    return Installation(
        configuration, namespace, name, deployment, pods, _settings(container, inspection.settings), _options(container)
    )


def serving_container(pod: JsonObject) -> JsonObject:
    """Return the container that runs `serve`: the first one."""
    return next(iter(mappings(pod, "spec", "containers")), {})


def _settings(container: JsonObject, default: Settings) -> Settings:
    variables = {text(each, "name"): text(each, "value") for each in mappings(container, "env")}
    if not variables:
        return default
    try:
        return read_settings(variables)
    except SettingsError:  # the replicas have another version than this command
        return default


def _options(container: JsonObject) -> dict[str, str]:
    arguments = container.get("args")
    words = [word for word in arguments if isinstance(word, str)] if isinstance(arguments, list) else []
    return {name: value for name, _, value in (word.partition("=") for word in words)}
