"""The webhook as the tool finds it in a cluster: its settings, and whether the API server calls it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.settings import PREFIX, Action, Settings, read_settings

# The chart's name for the webhook that reviews the pods of VMs.
VM_WEBHOOK = "vms.kubevirt-scheduler.io"
ANYWHERE = "so a restart places a VM anywhere"


class Activity(StrEnum):
    """Whether the webhook reviews the pods of VMs. `UNKNOWN` counts as yes."""

    CALLED = "called"
    NOT_CALLED = "not-called"
    NOT_INSTALLED = "not-installed"
    UNKNOWN = "unknown"


class Webhook(Struct, frozen=True):
    """The webhook of a cluster."""

    settings: Settings
    activity: Activity = Activity.CALLED
    source: str = ""  # the object that the settings come from; empty for the command's environment variables
    detail: str = ""  # why the activity is what it is
    version: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)  # the settings as that object has them

    @property
    def predicting(self) -> Settings:
        """Return the settings for predictions: a webhook that is not called changes no pod, as if it observed."""
        if self.activity in (Activity.NOT_CALLED, Activity.NOT_INSTALLED):
            return replace(self.settings, action=Action.OBSERVE)
        return self.settings

    @property
    def sentence(self) -> str:
        """Return a line that says which settings the predictions use, and why a restart may place a VM anywhere.

        Empty if nothing is known of the webhook, and no environment variable is set.
        """
        used = "environment variables of this command" if self.variables else "the defaults"
        if self.source:
            used = f"{self.source}, version {self.version}" if self.version else self.source
        match self.activity:
            case Activity.NOT_INSTALLED:
                return f"The webhook is not installed, {ANYWHERE}. Settings: {used}."
            case Activity.NOT_CALLED:
                why = f"The API server does not call the webhook, because {self.detail}"
                return f"Settings: {used}. {why}, {ANYWHERE}."
            case Activity.UNKNOWN:
                return f"Settings: {used}, because {self.detail}." if self.detail else ""
        observes = f" The webhook only observes, {ANYWHERE}." if self.settings.action is Action.OBSERVE else ""
        return f"Settings: {used}.{observes}"

    @classmethod
    def of_environment(cls, variables: Mapping[str, str], activity: Activity, detail: str = "") -> Self:
        """Return a webhook whose settings are the environment variables of the command. Raises SettingsError."""
        own = {name: value for name, value in variables.items() if name.startswith(PREFIX)}
        return cls(read_settings(own), activity, detail=detail, variables=own)

    def as_json(self) -> JsonObject:
        """Return the webhook for a snapshot and for programs."""
        return {
            "activity": self.activity.value,
            "source": self.source,
            "detail": self.detail,
            "version": self.version,
            "settings": dict(self.variables),
            "text": self.sentence,
        }

    @classmethod
    def from_snapshot(cls, item: JsonObject | None, shell: Mapping[str, str]) -> Self:
        """Return the webhook that a snapshot describes. `shell` are the variables to use if it describes none.

        Raises SettingsError for the variables of the shell.
        """
        kept = mapping(item, "webhook")
        if not kept:
            found = cls.of_environment(shell, Activity.UNKNOWN)
            return replace(found, detail="the files contain none") if found.variables else found
        source, detail, version = (text(kept, key) for key in ("source", "detail", "version"))
        variables = {name: str(value) for name, value in mapping(kept, "settings").items()}  # in edited YAML: 60
        try:
            return cls(read_settings(variables), Activity(text(kept, "activity")), source, detail, version, variables)
        except ValueError as error:  # also a SettingsError
            return cls.of_environment(shell, Activity.UNKNOWN, f"this version cannot read the snapshot's: {error}")
