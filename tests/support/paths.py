"""Paths of the repository files that tests read."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CASES = ROOT / "tests" / "cases"
REVIEWS = ROOT / "tests" / "data" / "reviews"
TRAILS = ROOT / "tests" / "data" / "longhorn"
EXAMPLES = ROOT / "examples"
DOCS = ROOT / "docs"
CHART = ROOT / "charts" / "kubevirt-scheduler"
SECONDARY_CHART = ROOT / "charts" / "secondary-scheduler"
