"""The PersistentVolumeClaims that a pod mounts, and the one that decides where it runs."""

from webhook.placement.objects.facts import Claim, Volume
from webhook.placement.objects.fields import JsonObject, mappings, text

MAX_CLAIMS = 128  # of a pod that are followed, each in 10 µs; more than a VM can have disks
DECIDING_CLAIM_ANNOTATION = "kubevirt-scheduler/co-schedule-claim"


def is_bound(claim: Claim, volume: Volume | None) -> bool:
    """Return whether a claim is bound. `volume` is the PV that it names, None if that is unknown.

    Namespace users write `spec.volumeName`: only the PV's claimRef, or the claim's status, shows that it is theirs.
    """
    if not claim.volume_name:
        return False
    return volume.names(claim) if volume else claim.phase == "Bound"


def mounted_claims(spec: JsonObject) -> tuple[str, ...]:
    """Return the names of the claims that a pod's spec mounts, in volume order, without duplicates.

    Of more than MAX_CLAIMS, the first ones and one more: to read 6,000 takes 3 ms.
    """
    names: dict[str, None] = {}
    for volume in mappings(spec, "volumes"):
        if "persistentVolumeClaim" in volume and (name := text(volume["persistentVolumeClaim"], "claimName")):
            names[name] = None
            if len(names) > MAX_CLAIMS:
                break
    return tuple(names)
