"""Three real nodes beside a control plane. `make test-nodes` runs these tests in namespaces of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.nodes.image import ARCHIVE
from tests.support.helm_release import LONG_TIMEOUT, Release
from tests.support.kubevirt import install_crds
from tests.support.longhorn import Longhorn
from tests.support.nodes.cluster import Cluster
from tests.support.nodes.guests import NodeScenario
from tests.support.nodes.images import TOOLS, pause_archive, write_archive, write_store
from tests.support.nodes.machine import STATE
from tests.support.nodes.plane import OpenControlPlane
from tests.support.nodes.share_managers import ServingLonghorn
from tests.support.nodes.system import system
from tests.support.webhook_process import NAMESPACE

# With `Fail`, a missed call fails the creation of a pod.
VALUES = ("--set=webhook.failurePolicy=Fail", LONG_TIMEOUT)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenControlPlane]:
    if "NODE_NAMESPACES" not in os.environ:  # the nodes need a network of their own
        pytest.skip("make test-nodes runs it in namespaces of its own")
    with OpenControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        plane.create_namespace(NAMESPACE)
        install_crds(plane)
        yield plane


def write_images(folder: Path) -> Path:
    """Write the file system with the images: the pods' sandbox, the programs of our pods, and the product."""
    tools = write_archive(folder / "tools.tar", TOOLS, system().archive, {"Cmd": ["/bin/bash"]})
    return write_store(folder, STATE.with_name("images"), [pause_archive(folder / "pause.tar"), tools, ARCHIVE])


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[Path]]:
    """The images, which are written while the control plane starts."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(write_images, tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def cluster(
    images: Future[Path], plane: OpenControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    cluster = Cluster(plane, system(), images.result(), tmp_path_factory.mktemp("nodes"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def longhorn(cluster: Cluster) -> Iterator[Longhorn]:
    """Longhorn with share-managers that serve."""
    longhorn = ServingLonghorn(cluster.plane)
    longhorn.install()
    longhorn.start()
    yield longhorn
    longhorn.stop()


@pytest.fixture(scope="session")
def release(cluster: Cluster, longhorn: Longhorn) -> Release:
    """The installed chart, with two replicas that are ready."""
    del longhorn
    return Release(cluster.plane, "kubevirt-scheduler").install("--wait", "--timeout=240s", *VALUES)


@pytest.fixture
def guests(cluster: Cluster, longhorn: Longhorn, release: Release) -> Iterator[NodeScenario]:
    """A namespace for this test only, whose VMs are containers with a disk."""
    del release
    with closing(NodeScenario(cluster, longhorn)) as scenario:
        yield scenario
