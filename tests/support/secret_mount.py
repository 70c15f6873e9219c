"""A Secret or ConfigMap volume as the kubelet mounts it: fields are links into `..data`, which an update replaces."""

from __future__ import annotations

import base64
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane

# Seconds between two reads. An update needs two reads of the same version. The real kubelet takes up to 90 s. A faster
# mount than cert-manager's injector, on a machine that stalls, would serve a certificate that no client trusts yet. A
# ConfigMap has no certificate.
SECRET_INTERVAL, CONFIG_MAP_INTERVAL = 3.0, 0.5


class SecretVolume:
    """A pod's volume that is filled from a Secret or ConfigMap of the control plane, and follows it until `stop`."""

    def __init__(self, plane: ControlPlane, secret: str, folder: Path) -> None:
        """`secret` is the path of the Secret or ConfigMap at the API server."""
        self._plane, self._secret, self._folder = plane, secret, folder
        self._seen = self._mounted = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        folder.mkdir()

    def start(self) -> None:
        """Start to follow the Secret, and return when the volume is filled: a pod's containers start only then."""
        self._plane.wait(self._poll, 30, f"{self._secret}, which a pod mounts")
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(SECRET_INTERVAL if "/secrets/" in self._secret else CONFIG_MAP_INTERVAL):
            with suppress(ApiError):  # without its Secret, a running pod retains the mounted files
                self._poll()

    def _poll(self) -> bool:
        secret = self._plane.request("GET", self._secret)
        before, self._seen = self._seen, secret["metadata"]["resourceVersion"]
        if self._seen != self._mounted and (not self._mounted or self._seen == before):
            decode = base64.b64decode if "/secrets/" in self._secret else str.encode
            self._update({name: decode(value) for name, value in secret.get("data", {}).items()})
            self._mounted = self._seen
        return True

    def _update(self, fields: Mapping[str, bytes]) -> None:
        """Replace the content of the folder by these fields, atomically."""
        version, data = self._folder / f"..{self._seen}", self._folder / "..data"
        version.mkdir()
        for name, content in fields.items():
            (version / name).write_bytes(content)
            (version / name).chmod(0o440)
        previous = data.readlink() if data.is_symlink() else None
        new = self._folder / "..data_tmp"
        new.symlink_to(version.name)
        new.replace(data)
        for name in fields:
            if not (link := self._folder / name).is_symlink():
                link.symlink_to(Path("..data", name))
        if previous:
            shutil.rmtree(self._folder / previous)
