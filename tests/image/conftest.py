"""The image, built once for all tests of this folder from a clean tag."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.image import Image, built_image, tagged_tree


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit, tagged with the version: the files of this one."""
    return tagged_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="session")
def image(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with built_image(tree, tmp_path_factory.mktemp("image")) as image:
        yield image
