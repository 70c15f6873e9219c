"""Pin the actions of the workflows to commits, and the images of CI and of the Dockerfile to digests.

`--check` changes nothing and fails if one is not pinned: a tag can move, and then CI runs or a release contains other
code. Without it, the references are pinned to what their tags name now, which needs git, and docker or skopeo.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = (*sorted(ROOT.glob(".github/workflows/*.yaml")), ROOT / "Dockerfile")
# An action, with its tag as a comment behind the commit; or an image, with its tag before the digest.
ACTION = re.compile(r"(?P<before>\buses: )(?P<name>[^@\s]+)@(?P<pin>\S+)(?: # (?P<tag>\S+))?$")
IMAGE = re.compile(r"(?P<before>^\s+image: |^ARG BASE=)(?P<name>[^@\s]+)(?:@(?P<pin>\S+))?$")
COMMIT, DIGEST = re.compile("[0-9a-f]{40}"), re.compile("sha256:[0-9a-f]{64}")
Resolve = Callable[[str, str], str]  # the pin of a name and a tag


def unpinned(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the reference of each action and image that has no commit or digest."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, pin in ((ACTION, COMMIT), (IMAGE, DIGEST)):
            found = pattern.search(line)
            if found and not pin.fullmatch(found["pin"] or ""):
                yield number, found[0].strip()


def pinned(text: str, commit_of: Resolve, digest_of: Resolve) -> str:
    """Return the text with the current commit or digest of each reference's tag."""

    def action(found: re.Match[str]) -> str:
        tag = found["tag"] or found["pin"]
        return f"{found['before']}{found['name']}@{commit_of(found['name'], tag)} # {tag}"

    def image(found: re.Match[str]) -> str:
        return f"{found['before']}{found['name']}@{digest_of(*found['name'].rsplit(':', 1))}"

    lines = (IMAGE.sub(image, ACTION.sub(action, line)) for line in text.splitlines())
    return "\n".join(lines) + "\n"


def commit(action: str, tag: str) -> str:
    """Return the commit of an action's tag. An annotated tag is listed twice, and its commit comes last."""
    repository = "/".join(action.split("/")[:2])
    names = [f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}"]
    return _last_match(COMMIT, ["git", "ls-remote", f"https://github.com/{repository}", *names])


def digest(image: str, tag: str) -> str:
    """Return the digest of an image's tag, of the list for all platforms."""
    if shutil.which("skopeo"):
        return _last_match(DIGEST, ["skopeo", "inspect", "--format={{.Digest}}", f"docker://{image}:{tag}"])
    command = ["docker", "buildx", "imagetools", "inspect", "--format={{.Manifest.Digest}}", f"{image}:{tag}"]
    return _last_match(DIGEST, command)


def _last_match(pattern: re.Pattern[str], command: list[str]) -> str:
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = pattern.findall(output)
    if not found:
        sys.exit(f"pins.py: `{' '.join(command)}` prints no {pattern.pattern}")
    return str(found[-1])


def main() -> None:
    """Check or pin all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        found = [
            f"{file.relative_to(ROOT)}:{line}: {what}" for file in FILES for line, what in unpinned(file.read_text())
        ]
        sys.exit("\n".join([*found, "not pinned; run .ci/pins.py and commit the result"]) if found else 0)
    for file in FILES:
        file.write_text(pinned(file.read_text(), commit, digest))


if __name__ == "__main__":
    main()
