"""The installed webhook, found by its MutatingWebhookConfiguration: Service, Deployment, pods and settings."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from certs import CONFIGURATIONS
from webhook.cluster.client import ClusterClient
from webhook.fleet.webhook import VM_WEBHOOK, Activity, Webhook
from webhook.placement.objects.fields import JsonObject, has_condition, mapping, mappings, text
from webhook.placement.objects.pod import is_terminating
from webhook.placement.settings import PREFIX, Settings, SettingsError, read_settings
from webhook.reading.api import Denied, Reader

VERSION_LABEL = "app.kubernetes.io/version"


@dataclass(frozen=True, slots=True, eq=False)  # a key of the caches of what several checks read
class Installation:
    """What the chart installed. `deployment` is empty if it isn't found.

    `variables` and `arguments` are those of `serve`.
    """

    configuration: JsonObject
    namespace: str
    service: str
    deployment: JsonObject
    pods: list[JsonObject]
    variables: Mapping[str, str]
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


def find_installation(reader: Reader, configuration: JsonObject, default: Settings) -> Installation:
    """Read what the chart installed besides its MutatingWebhookConfiguration.

    `default` are the settings if those of the Deployment can't be read.
    """
    references = [mapping(webhook, "clientConfig", "service") for webhook in mappings(configuration, "webhooks")]
    namespace, name = next(((text(each, "namespace"), text(each, "name")) for each in references if each), ("", ""))
    service = reader.get(f"/api/v1/namespaces/{namespace}/services/{name}") if name else None
    labels = mapping(service, "spec", "selector")
    deployment: JsonObject = {}
    pods: list[JsonObject] = []
    if labels:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        deployment = next(iter(reader.items(path, labelSelector=selector)), {})
        pods = reader.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
    container = serving_container(mapping(deployment, "spec", "template"))
    named = ((text(each, "name"), text(each, "value")) for each in mappings(container, "env"))
    variables = {name: value for name, value in named if name.startswith(PREFIX)}
    settings = default
    with suppress(SettingsError):  # the replicas have another version than this command
        settings = read_settings(variables) if variables else default
    return Installation(configuration, namespace, name, deployment, pods, variables, settings, _options(container))


def serving_container(pod: JsonObject) -> JsonObject:
    """Return the container that runs `serve`: the first one."""
    return next(iter(mappings(pod, "spec", "containers")), {})


def _options(container: JsonObject) -> dict[str, str]:
    arguments = container.get("args")
    words = [word for word in arguments if isinstance(word, str)] if isinstance(arguments, list) else []
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def find_webhook(cluster: ClusterClient, shell: Mapping[str, str]) -> Webhook:
    """Find the installed webhook, its settings, and whether the API server calls it.

    `shell` are environment variables. They count where nothing is installed, and where the user may not read the
    installed settings. Raises BadInput, and SettingsError for these variables.
    """
    reader = Reader(cluster)
    try:
        names = (
            (each, [text(one, "name") for one in mappings(each, "webhooks")]) for each in reader.items(CONFIGURATIONS)
        )
        found = next((each for each, webhooks in names if VM_WEBHOOK in webhooks), None)
        if found is None:
            return Webhook.of_environment(shell, Activity.NOT_INSTALLED)
        return _described(find_installation(reader, found, Settings()), shell)
    except Denied:
        return Webhook.of_environment(shell, Activity.UNKNOWN, "you may not read those of the cluster")


def _described(found: Installation, shell: Mapping[str, str]) -> Webhook:
    if not found.deployment:
        return Webhook.of_environment(shell, Activity.UNKNOWN, "the webhook's Deployment is not found")
    source = f"Deployment {found.namespace}/{text(found.deployment, 'metadata', 'name')}"
    version = text(found.deployment, "metadata", "labels", VERSION_LABEL)
    try:
        settings = read_settings(found.variables)
    except SettingsError as error:
        return Webhook.of_environment(shell, Activity.UNKNOWN, f"this version cannot read those of {source}: {error}")
    obstacle = _why_not_called(found)
    activity = Activity.NOT_CALLED if obstacle else Activity.CALLED
    return Webhook(settings, activity, source, obstacle, version, found.variables)


def _why_not_called(found: Installation) -> str:
    called = next((each for each in found.webhooks if text(each, "name") == VM_WEBHOOK), {})
    if not text(called, "clientConfig", "caBundle"):
        return "its configuration has no caBundle"
    ready = (pod for pod in found.pods if has_condition(pod, "Ready") and not is_terminating(pod))
    return "" if any(ready) else "no replica is ready"
