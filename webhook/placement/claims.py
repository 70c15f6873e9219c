"""The PersistentVolumeClaims that a pod mounts."""

from webhook.placement.shape import JsonObject, mappings, text


def mounted_claims(pod: JsonObject) -> tuple[str, ...]:
    """Return the names of the pod's claims in volume order, without duplicates."""
    volumes = (volume for volume in mappings(pod, "spec", "volumes") if "persistentVolumeClaim" in volume)
    names = (text(volume, "persistentVolumeClaim", "claimName") for volume in volumes)
    return tuple(dict.fromkeys(name for name in names if name))
