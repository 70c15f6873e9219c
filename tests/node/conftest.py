"""A control plane with one real node. `make test-node` runs these tests in namespaces of their own."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.node.image import ARCHIVE
from tests.support.controlplane import build
from tests.support.kubevirt import install_crds
from tests.support.real_node import PAUSE, OpenControlPlane, RealNode
from tests.support.webhook_process import NAMESPACE


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenControlPlane]:
    if "NODE_NAMESPACES" not in os.environ:  # a node would change the network of this machine
        pytest.skip("make test-node runs it in namespaces of its own")
    with OpenControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        plane.publish()
        plane.create_namespace(NAMESPACE)
        install_crds(plane)
        yield plane


@pytest.fixture(scope="session")
def node(plane: OpenControlPlane, tmp_path_factory: pytest.TempPathFactory) -> RealNode:
    folder = tmp_path_factory.mktemp("node")
    node = RealNode(plane, folder)
    node.start(pause_image(folder / "pause.tar"), ARCHIVE)
    return node


def pause_image(file: Path) -> Path:
    """Write an image of the one program that waits."""
    program, layer = build.rare("node")["pause"], io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        files.add(program, "pause")
    digest = sha256(layer.getvalue()).hexdigest()
    root = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    config = {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/pause"]}, "rootfs": root}
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]
    contents = {"layer.tar": layer.getvalue()}
    contents |= {
        name: json.dumps(each).encode() for name, each in (("config.json", config), ("manifest.json", manifest))
    }
    with tarfile.open(file, "w") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file
