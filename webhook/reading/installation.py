"""The installed webhook, found by its MutatingWebhookConfiguration: Service, Deployment, pods and settings."""

import os
from collections.abc import Mapping

from msgspec import Struct

from certs import CONFIGURATIONS
from webhook.cluster.client import ClusterClient
from webhook.fleet.webhook import VM_WEBHOOK, Activity, Webhook
from webhook.placement.objects.fields import JsonObject, has_condition, mapping, mappings, text
from webhook.placement.objects.pod import is_terminating
from webhook.placement.settings import PREFIX, Settings, SettingsError, read_settings
from webhook.reading.api import Denied, read_list, read_object

VERSION_LABEL = "app.kubernetes.io/version"


class Installation(Struct, frozen=True, eq=False):  # a key of the caches of what several checks read
    """What the chart installed."""

    configuration: JsonObject
    namespace: str
    service: str
    deployment: JsonObject  # empty if it isn't found
    pods: list[JsonObject]
    arguments: Mapping[str, str]  # those of `serve`
    webhook: Webhook

    @property
    def name(self) -> str:
        """Return the name of the configuration."""
        return text(self.configuration, "metadata", "name")

    @property
    def settings(self) -> Settings:
        """Return the settings of the replicas."""
        return self.webhook.settings

    @property
    def webhooks(self) -> list[JsonObject]:
        """Return the webhooks of the configuration."""
        return mappings(self.configuration, "webhooks")

    @property
    def secret(self) -> tuple[str, str] | None:
        """Return the namespace and name of the Secret with the certificates, None if the replicas have none."""
        if self_signed := self.arguments.get("--tls-secret"):
            namespace, _, name = self_signed.partition("/")
            return namespace, name
        volumes = mappings(self.deployment, "spec", "template", "spec", "volumes")
        names = [text(volume, "secret", "secretName") for volume in volumes if text(volume, "name") == "tls"]
        return (self.namespace, names[0]) if names else None


def find_installation(cluster: ClusterClient, configuration: JsonObject) -> Installation:
    """Read what the chart installed besides its MutatingWebhookConfiguration. Raises Denied, and BadInput.

    If the settings of the Deployment can't be read, the environment variables count. Raises SettingsError for them.
    """
    references = [mapping(webhook, "clientConfig", "service") for webhook in mappings(configuration, "webhooks")]
    namespace, name = next(((text(each, "namespace"), text(each, "name")) for each in references if each), ("", ""))
    service = read_object(cluster, f"/api/v1/namespaces/{namespace}/services/{name}") if name else None
    labels = mapping(service, "spec", "selector")
    deployment: JsonObject = {}
    pods: list[JsonObject] = []
    if labels:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        deployment = next(iter(read_list(cluster, path, labelSelector=selector)), {})
        pods = read_list(cluster, f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
    arguments = serving_container(mapping(deployment, "spec", "template")).get("args")
    words = [word for word in arguments if isinstance(word, str)] if isinstance(arguments, list) else []
    options = {option: value for option, _, value in (word.partition("=") for word in words)}
    webhook = _webhook(configuration, deployment, pods)
    return Installation(configuration, namespace, name, deployment, pods, options, webhook)


def serving_container(pod: JsonObject) -> JsonObject:
    """Return the container that runs `serve`: the first one."""
    return next(iter(mappings(pod, "spec", "containers")), {})


def _webhook(configuration: JsonObject, deployment: JsonObject, pods: list[JsonObject]) -> Webhook:
    obstacle = _why_not_called(configuration, pods)
    unread = Activity.NOT_CALLED if obstacle else Activity.UNKNOWN
    if not deployment:
        return Webhook.of_environment(os.environ, unread, obstacle or "the webhook's Deployment is not found")
    source = f"Deployment {text(deployment, 'metadata', 'namespace')}/{text(deployment, 'metadata', 'name')}"
    environment = mappings(serving_container(mapping(deployment, "spec", "template")), "env")
    named = ((text(each, "name"), text(each, "value")) for each in environment)
    variables = {name: value for name, value in named if name.startswith(PREFIX)}
    try:
        settings = read_settings(variables)
    except SettingsError as error:
        detail = obstacle or f"this version cannot read those of {source}: {error}"
        return Webhook.of_environment(os.environ, unread, detail)
    activity = Activity.NOT_CALLED if obstacle else Activity.CALLED
    version = text(deployment, "metadata", "labels", VERSION_LABEL)
    return Webhook(settings, activity, source, obstacle, version, variables)


def _why_not_called(configuration: JsonObject, pods: list[JsonObject]) -> str:
    webhooks = {text(each, "name"): each for each in mappings(configuration, "webhooks")}
    if not text(webhooks.get(VM_WEBHOOK), "clientConfig", "caBundle"):
        return "its configuration has no caBundle"
    ready = (pod for pod in pods if has_condition(pod, "Ready") and not is_terminating(pod))
    return "" if any(ready) else "no replica is ready"


def find_installed(cluster: ClusterClient, name: str | None = None) -> Installation | None:
    """Find what the chart installed, None if it isn't installed. Raises like `find_installation`.

    `name` is the configuration's, if it is known.
    """
    known = [read_object(cluster, f"{CONFIGURATIONS}/{name}")] if name else read_list(cluster, CONFIGURATIONS)
    for each in filter(None, known):
        if any(text(webhook, "name") == VM_WEBHOOK for webhook in mappings(each, "webhooks")):
            return find_installation(cluster, each)
    return None


def find_webhook(cluster: ClusterClient) -> Webhook:
    """Find the installed webhook, its settings, and whether the API server calls it.

    The environment variables count where nothing is installed, and where the user may not read the installed settings.
    Raises BadInput, and SettingsError for these variables.
    """
    try:
        found = find_installed(cluster)
    except Denied:
        return Webhook.of_environment(os.environ, Activity.UNKNOWN, "you may not read those of the cluster")
    return found.webhook if found else Webhook.of_environment(os.environ, Activity.NOT_INSTALLED)
