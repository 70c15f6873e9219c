"""The facts about the objects that opt in VMs besides the VMs themselves: namespaces and StorageClasses."""

from dataclasses import dataclass

from webhook.placement.settings import OPT_IN_ANNOTATIONS

# Always this key: the setting CO_SCHEDULE_OPT_IN_ANNOTATIONS renames only the annotation of VMs.
OPT_IN_KEY = OPT_IN_ANNOTATIONS[0]


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace. `opt_in` is its label, None if that is neither "true" nor "false"."""

    name: str
    opt_in: bool | None

    @property
    def key(self) -> tuple[str, str]:
        """Return an empty namespace and the name."""
        return "", self.name


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass. `opts_in` means that its annotation is "true"."""

    name: str
    opts_in: bool

    @property
    def key(self) -> tuple[str, str]:
        """Return an empty namespace and the name."""
        return "", self.name
