"""Take the pictures of the report's page in the documentation: `.venv/bin/python -m tests.commands.page_screenshot`.

The page shows the example cluster. Needs Chromium.
"""

import tempfile
from pathlib import Path

from click.testing import CliRunner

from tests.commands.browser import chromium
from tests.support.paths import DOCS, EXAMPLES
from webhook.cli import commands

SNAPSHOTS = [EXAMPLES / "cluster.yaml", EXAMPLES / "fleet.yaml"]
WIDTH, SCALE = 1280, 1  # pixels of the page, and pixels of the picture for each
MARGIN = 24  # pixels below the last box


def example_page() -> str:
    """Return the page of the example cluster."""
    options = [word for file in SNAPSHOTS if file.is_file() for word in ("--snapshot", str(file))]
    return CliRunner().invoke(commands, ["report", "-o", "html", *options], catch_exceptions=False).stdout


def take(folder: Path) -> None:
    """Write fleet-light.png and fleet-dark.png into a folder."""
    with tempfile.TemporaryDirectory() as temporary, chromium(Path(temporary)) as page:
        file = Path(temporary) / "report.html"
        file.write_text(example_page(), encoding="utf-8")
        page.call("Emulation.setScrollbarsHidden", hidden=True)
        for scheme in ("light", "dark"):
            page.open(file, WIDTH, 700, scheme, scale=SCALE)
            bottom = page.evaluate("document.querySelector('#nodes').getBoundingClientRect().bottom")
            page.open(file, WIDTH, round(bottom) + MARGIN, scheme, scale=SCALE)
            page.screenshot(folder / f"fleet-{scheme}.png")


if __name__ == "__main__":
    take(DOCS / "images")
