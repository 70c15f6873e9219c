"""Paths of the repository files that tests read."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CASES = ROOT / "tests" / "cases"
REVIEWS = ROOT / "tests" / "data" / "reviews"
EXAMPLES = ROOT / "examples"
DOCS = ROOT / "docs"
CHART = ROOT / "charts" / "kubevirt-scheduler"
SECONDARY_CHART = ROOT / "charts" / "secondary-scheduler"
