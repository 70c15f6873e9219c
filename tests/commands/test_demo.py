"""The demo's reviews are those that the tests use. README.md shows what it prints."""

import yaml

from tests.support.paths import EXAMPLES, REVIEWS


def test_each_review_has_a_scene_and_the_unmodified_ones_equal_their_recording() -> None:
    scenes = yaml.safe_load(EXAMPLES.joinpath("scenes.yaml").read_text())
    assert {scene["review"] for scene in scenes} == {path.stem for path in EXAMPLES.glob("reviews/*.json")}
    for name in ("vm-start.json", "migration-target.json"):
        assert EXAMPLES.joinpath("reviews", name).read_bytes() == REVIEWS.joinpath(name).read_bytes()
