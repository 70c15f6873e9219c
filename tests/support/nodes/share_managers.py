"""A fake Longhorn whose share-managers serve: NFS Ganesha with Longhorn's options, behind a Service of each volume.

A volume is a file that each node can open, as with a replica on each node: a share-manager's disk needs no network.
longhorn-share-manager sets the same options in its pkg/server/nfs.
"""

from __future__ import annotations

import json
import time

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.nodes.images import TOOLS

NFS_PORT = 2049
SIZE = "512M"  # of a volume's file, which is sparse
# Longhorn's, but for its own RecoveryBackend, which only its build of Ganesha has.
GANESHA = """
NFS_Core_Param { NLM_Port = 0; MNT_Port = 0; RQUOTA_Port = 0; Enable_NLM = false; Enable_RQUOTA = false;
  Enable_UDP = false; fsid_device = false; Protocols = 4; }
NFSv4 { Lease_Lifetime = 60; Grace_Period = 90; Minor_Versions = 1, 2; RecoveryBackend = fs;
  Only_Numeric_Owners = true; }
Export_defaults { Protocols = 4; Transports = TCP; Access_Type = None; SecType = sys; Squash = None; }
EXPORT { Export_Id = 1; Path = /export/VOLUME; Pseudo = /VOLUME; Protocols = 4; Transports = TCP; Access_Type = RW;
  SecType = sys; Squash = None; Attr_Expiration_Time = 0; Filesystem_id = 1.0; FSAL { Name = VFS; } }
"""
# The kernel may remember the file as it was when this node served it last. Ganesha finds its exports in /etc/mtab.
SERVE = f"""
set -e
mkdir -p /export/$VOLUME /run/ganesha /var/lib/nfs/ganesha
ln -sf /proc/self/mounts /etc/mtab
sync
echo 3 >/proc/sys/vm/drop_caches
disk=/volumes/$VOLUME
[ -e $disk ] || {{ truncate -s {SIZE} $disk; mkfs.ext4 -q $disk; }}
mount -o loop $disk /export/$VOLUME
chmod 0777 /export/$VOLUME
printf '%s' "$GANESHA" >/run/ganesha.conf
ulimit -n 65536
exec ganesha.nfsd -F -L STDOUT -f /run/ganesha.conf -p /run/ganesha.pid
"""


# Seconds from the attachment of a volume until Longhorn acts on it. Real Longhorn took at least 0.3 s after the binding
# of the pod, in 17 starts (docs/development/live-tests.md). Without it, the watch of a node of one core may be slower.
ATTACHING = 0.3


class ServingLonghorn(Longhorn):
    """A fake Longhorn on real nodes."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        self._attached: dict[str, float] = {}  # by volume: since when it is

    def endpoint(self, volume: str) -> str:
        """Return the IP of a volume's Service."""
        path = f"/api/v1/namespaces/{self.namespace}/services/{volume}"
        return str(self._plane.request("GET", path)["spec"]["clusterIP"])

    def remove_volume(self, volume: str) -> None:
        super().remove_volume(volume)
        self._delete(f"/api/v1/namespaces/{self.namespace}/services/{volume}")

    def _create_manager(self, volume: str) -> None:
        spec = {"selector": _labels(volume), "ports": [{"name": "nfs", "port": NFS_PORT}]}
        service = {"metadata": {"name": volume, "labels": _labels(volume)}, "spec": spec}
        self._create(f"/api/v1/namespaces/{self.namespace}/services", service)
        super()._create_manager(volume)

    def _sync(self, manager: Object, pod: Object | None, attachments: list[Object], pv: Object) -> None:
        volume, now = manager["metadata"]["name"], time.monotonic()
        if not attachments:
            self._attached.pop(volume, None)
        elif pod is None and now - self._attached.setdefault(volume, now) < ATTACHING:
            return
        super()._sync(manager, pod, attachments, pv)

    def _attachment_status(self, volume: str) -> Object:
        """Tell the node's CSI driver where the share is."""
        return {"attachmentMetadata": {"share": f"{self.endpoint(volume)}:/{volume}"}}

    def _pod(self, volume: str, manager: Object, pv: Object) -> Object:
        pod = super()._pod(volume, manager, pv)
        spec = pod["spec"]
        (container,) = spec["containers"]
        variables = {"VOLUME": volume, "GANESHA": GANESHA.replace("VOLUME", volume)}
        container |= {
            "image": TOOLS,
            "command": ["/bin/bash", "-c", SERVE],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "volumeMounts": [{"name": "volumes", "mountPath": "/volumes"}],
            # Longhorn's runs `cat /var/run/ganesha.pid`, which costs a node a second of its CPU.
            "readinessProbe": {"tcpSocket": {"port": NFS_PORT}, "periodSeconds": 1},
        }
        del container["args"]
        spec["volumes"] = [{"name": "volumes", "hostPath": {"path": "/share/volumes"}}]
        return json.loads(json.dumps(pod))  # type: ignore[no-any-return]


def _labels(volume: str) -> Object:
    return {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": volume}
