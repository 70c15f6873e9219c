"""The nodes' images: archives with one layer, and the file system in which containerd has them unpacked.

A node takes minutes to import an image, so a containerd of this machine does it before the nodes start.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import time
from collections.abc import Iterable
from hashlib import file_digest, sha256
from pathlib import Path

from tests.support.controlplane import build
from tests.support.controlplane.process import Process

PAUSE, TOOLS = "localhost/pause:1", "localhost/tools:1"
NAMESPACE = "--namespace=k8s.io"  # the kubelet's
SIZE = "4G"  # of the file system, which is sparse
# The plugins that the kubelet uses would need a network.
CONFIG = """
version = 3
root = "{folder}/root"
state = "{state}"
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"
]
[grpc]
address = "{state}/containerd.sock"
"""


def pause_archive(file: Path) -> Path:
    """Write an image of the program that only waits."""
    layer = file.with_suffix(".layer")
    with tarfile.open(layer, "w") as files:
        files.add(build.rare("nodes")["pause"], "pause")
    return write_archive(file, PAUSE, layer, {"Entrypoint": ["/pause"]})


def write_archive(file: Path, name: str, layer: Path, config: dict[str, object]) -> Path:
    """Write an image with this layer and this configuration in the format of `docker save`."""
    with layer.open("rb") as stream:
        digest = file_digest(stream, "sha256").hexdigest()
    root = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    image = json.dumps({"architecture": "amd64", "os": "linux", "config": config, "rootfs": root}).encode()
    config_name = f"{sha256(image).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(file, "w") as archive:
        archive.add(layer, "layer.tar")
        for member, content in ((config_name, image), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file


def write_store(folder: Path, state: Path, archives: Iterable[Path]) -> Path:
    """Write a file system with containerd's folder, in which these images are unpacked. `state` is a short path."""
    programs, socket = build.rare("nodes"), state / "containerd.sock"
    for each in folder / "root", state:
        each.mkdir(parents=True)
    (folder / "containerd.toml").write_text(CONFIG.format(folder=folder, state=state))
    containerd = Process(
        "images-containerd", [str(programs["containerd"]), f"--config={folder}/containerd.toml"], "", folder
    )
    containerd.start()
    try:
        _wait_for(socket, containerd)
        for archive in archives:
            _call(str(programs["ctr"]), f"--address={socket}", NAMESPACE, "images", "import", "--local", str(archive))
    finally:
        containerd.kill()
    store = folder / "images.ext4"
    _call("truncate", "--size", SIZE, str(store))
    _call("mkfs.ext4", "-q", "-d", str(folder / "root"), str(store))
    return store


def _wait_for(socket: Path, containerd: Process) -> None:
    deadline = time.monotonic() + 60
    while not socket.exists():
        if not containerd.alive or time.monotonic() > deadline:
            raise RuntimeError(f"containerd does not listen:\n{containerd.tail()}")
        time.sleep(0.1)


def _call(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr[-2000:]}")
