"""Build the files of a release: both charts, one with its image and annotations, the krew manifest, and checksums.

`make package` builds the kubectl plugin (plugin.py) and the SBOM before it runs this.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
CHART = ROOT / "charts" / "kubevirt-scheduler"
SECONDARY_CHART = ROOT / "charts" / "secondary-scheduler"
# An image's name: the registry has a dot or a port, or is localhost.
IMAGE = re.compile(r"(?:(?P<registry>[^/]*[.:][^/]*|localhost)/)?(?P<repository>[^:@]+)(?::(?P<tag>[^@]+))?")
SECTION = re.compile(r"^## \[(?P<version>[^]]+)\].*?\n(?P<body>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
KREW = "krew.googlecontainertools.github.com/v1alpha2"
PLUGIN = "kubectl-coschedule"
LICENSE, SUMS = "LICENSE", "SHA256SUMS"


@dataclass(frozen=True, slots=True)
class Release:
    """What the files of a release refer to: the image, its digest, and where source and files are published."""

    version: str
    image: dict[str, str]
    digest: str
    source: str
    downloads: str

    @property
    def pages(self) -> str:
        """The URL of this version's files in the published source."""
        return f"{self.source}/blob/v{self.version}"

    @property
    def image_name(self) -> str:
        """The full name of the image, with the digest if there is one."""
        path = "/".join(part for part in (self.image["registry"], self.image["repository"]) if part)
        return f"{path}:{self.image['tag'] or self.version}" + (f"@{self.digest}" if self.digest else "")


def read_image(name: str) -> dict[str, str]:
    """Split the name of an image into registry, repository and tag."""
    found = IMAGE.fullmatch(name)
    if found is None:
        raise SystemExit(f"{name!r} is not an image name such as registry.example.com/kubevirt-scheduler:0.1.0")
    return {key: value or "" for key, value in found.groupdict().items()}


def changes(changelog: str, version: str) -> list[dict[str, str]]:
    """Return the entries of a version for Artifact Hub, or those under [Unreleased] if it has no section yet."""
    sections = {found["version"]: found["body"] for found in SECTION.finditer(changelog)}
    body = sections.get(version) or sections.get("Unreleased", "")
    parts = [part.partition("\n") for part in re.split(r"^### ", body, flags=re.MULTILINE)[1:]]
    return [
        {"kind": kind.strip().lower(), "description": " ".join(bullet.split())}
        for kind, _, bullets in parts
        for bullet in re.split(r"^- ", bullets, flags=re.MULTILINE)[1:]
    ]


def chart_metadata(chart: Path, release: Release) -> dict[str, Any]:
    """Return Chart.yaml with what Artifact Hub shows. It finds the signature of cosign by itself, in the registry."""
    annotations: dict[str, Any] = {
        "artifacthub.io/links": [
            {"name": "Documentation", "url": f"{release.source}#readme"},
            {"name": "Verify the signature", "url": f"{release.pages}/docs/development/release.md#verify"},
            {"name": "support", "url": f"{release.source}/issues"},  # Artifact Hub highlights a link of this name
            {"name": "KubeVirt", "url": "https://kubevirt.io"},
            {"name": "Longhorn", "url": "https://longhorn.io"},
        ]
    }
    if chart == CHART:
        annotations["artifacthub.io/changes"] = changes((ROOT / "CHANGELOG.md").read_text(), release.version)
        annotations["artifacthub.io/images"] = [{"name": "kubevirt-scheduler", "image": release.image_name}]
    texts = {key: yaml.safe_dump(value, sort_keys=False, width=1000) for key, value in annotations.items()}
    metadata: dict[str, Any] = yaml.safe_load((chart / "Chart.yaml").read_text())
    metadata |= {"home": release.source, "sources": [release.source]}
    return metadata | {"annotations": metadata["annotations"] | texts}


def with_defaults(values: str, section: str, defaults: dict[str, str]) -> str:
    """Return values.yaml with other defaults in a section. The comments stay."""
    head, mark, rest = values.partition(f"\n{section}:\n")
    for key, value in defaults.items():
        rest, count = re.subn(
            rf"^(  {key}: ).*$", lambda found, value=value: found[1] + f'"{value}"', rest, count=1, flags=re.MULTILINE
        )
        if count != 1:
            raise SystemExit(f"values.yaml has no {section}.{key}")
    return head + mark + rest


def released_values(values: str, release: Release) -> str:
    """Return values.yaml with the released image, and the runbooks of this version."""
    values = with_defaults(values, "image", release.image | {"digest": release.digest})
    return with_defaults(values, "prometheusRule", {"runbookUrl": f"{release.pages}/docs/runbooks/README.md"})


def package_charts(release: Release, helm: str, out: Path) -> None:
    """Package copies of both charts, with the release's image as the default of the webhook's."""
    with TemporaryDirectory() as scratch:
        for chart in CHART, SECONDARY_CHART:
            copy = Path(shutil.copytree(chart, Path(scratch, chart.name)))
            shutil.copy(ROOT / LICENSE, copy)
            if chart == CHART:
                (copy / "values.yaml").write_text(released_values((copy / "values.yaml").read_text(), release))
            metadata = chart_metadata(chart, release)
            (copy / "Chart.yaml").write_text(yaml.safe_dump(metadata, sort_keys=False, width=1000))
            subprocess.run([helm, "package", str(copy), f"--destination={out}"], check=True)


def sha256(file: Path) -> str:
    """Return the hash of a file as krew and sha256sum write it."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def krew_manifest(release: Release, archives: list[Path]) -> dict[str, Any]:
    """Return the manifest by which krew installs the plugin."""
    platforms = []
    for archive in archives:
        system, architecture = archive.name.removesuffix(".tar.gz").split("-")[-2:]
        platforms.append(
            {
                "selector": {"matchLabels": {"os": system, "arch": architecture}},
                "uri": f"{release.downloads}/{archive.name}",
                "sha256": sha256(archive),
                "bin": PLUGIN,
                "files": [{"from": "*", "to": "."}],
            }
        )
    return {
        "apiVersion": KREW,
        "kind": "Plugin",
        "metadata": {"name": "coschedule"},
        "spec": {
            "version": f"v{release.version}",
            "homepage": release.source,
            "shortDescription": "Report which KubeVirt VMs run on the node of their storage",
            "description": "Shows which VMs run on the node that serves their Longhorn RWX volumes, why a VM runs\n"
            "where it runs, and what a restart would change. It changes nothing in the cluster.\n",
            "caveats": "Needs Python 3.11 to 3.14 as python3.\n",
            "platforms": platforms,
        },
    }


def main() -> None:
    """Read the options and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--helm", default="helm")
    for name in "version", "image", "source":
        parser.add_argument(f"--{name}", required=True)
    for name in "digest", "downloads":
        parser.add_argument(f"--{name}", default="")
    given = parser.parse_args()
    downloads = given.downloads or f"{given.source}/releases/download/v{given.version}"
    release = Release(given.version, read_image(given.image), given.digest, given.source, downloads)
    given.out.mkdir(exist_ok=True)
    package_charts(release, given.helm, given.out)
    archives = sorted(given.out.glob(f"{PLUGIN}-*.tar.gz"))
    manifest = krew_manifest(release, archives)
    (given.out / "coschedule.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    files = sorted(file for file in given.out.iterdir() if file.is_file() and file.name != SUMS)
    (given.out / SUMS).write_text("".join(f"{sha256(file)}  {file.name}\n" for file in files))


if __name__ == "__main__":
    main()
