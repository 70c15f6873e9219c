"""A Secret as the kubelet mounts it: the fields are links into `..data`, itself a link, which is replaced."""

from __future__ import annotations

import base64
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane

# Seconds; what is new is brought when it is seen again. The real one takes up to 90; one that is faster than
# the injector on a machine that stalls would show what nobody trusts yet.
EVERY = 3.0


class Mounted:
    """A folder with a Secret's fields, all of which change at once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._times = folder, 0
        folder.mkdir()

    def bring(self, fields: Mapping[str, bytes]) -> None:
        """Put these fields in the place of those that are there."""
        self._times += 1
        version, data = self.folder / f"..2026_11_21_{self._times}", self.folder / "..data"
        version.mkdir()
        for name, content in fields.items():
            (version / name).write_bytes(content)
            (version / name).chmod(0o440)
        former = data.readlink() if data.is_symlink() else None
        new = self.folder / "..data_tmp"
        new.symlink_to(version.name)
        new.replace(data)
        for name in fields:
            if not (link := self.folder / name).is_symlink():
                link.symlink_to(Path("..data", name))
        if former:
            shutil.rmtree(self.folder / former)


class Mount:
    """A volume of a pod that is filled from a Secret, and follows it until `stop`."""

    def __init__(self, plane: ControlPlane, secret: str, folder: Path) -> None:
        """`secret` is its path at the API server."""
        self._plane, self._secret, self._mounted = plane, secret, Mounted(folder)
        self._seen = self._brought = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Return when it is filled: before that, no container of the pod starts."""
        self._plane.wait(self._look, 30, f"{self._secret}, which a pod mounts")
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(EVERY):
            with suppress(ApiError):  # while it is gone, a pod that runs keeps what it has
                self._look()

    def _look(self) -> bool:
        secret = self._plane.request("GET", self._secret)
        before, self._seen = self._seen, secret["metadata"]["resourceVersion"]
        if self._seen != self._brought and (not self._brought or self._seen == before):
            self._mounted.bring({name: base64.b64decode(value) for name, value in secret.get("data", {}).items()})
            self._brought = self._seen
        return True
