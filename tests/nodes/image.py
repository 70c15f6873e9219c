"""Write the product's image for the nodes, under the name that the chart's default values have."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.image.image import NAME, built_image, call, tagged_tree
from tests.support.paths import ROOT
from webhook import __version__

ARCHIVE = ROOT / ".cache/image.tar"
REFERENCE = f"docker.io/library/kubevirt-scheduler:{__version__}"

if __name__ == "__main__":
    os.umask(0o022)
    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree, build = Path(folder, "tree"), Path(folder, "build")
        tree.mkdir()
        build.mkdir()
        with built_image(tagged_tree(tree), build) as image:
            call(["buildah", "push", NAME, f"oci-archive:{ARCHIVE}:{REFERENCE}"], image.store)
