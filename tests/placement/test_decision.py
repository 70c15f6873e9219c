"""One vocabulary: each reason is one word, and belongs to one station of the decision."""

import dataclasses
import re

import pytest

from webhook.placement.decision import (
    CLAIM_REASONS,
    GUARD_REASONS,
    ClaimFinding,
    Decision,
    Mode,
    Outcome,
    Reason,
    Source,
)

DESIGN = """
    CoScheduled
    NotAPodCreation NotVirtLauncher NotOptedIn MigrationTarget EphemeralProvisioning AlreadyBound NoClaims
    AlreadyInjected
    ClaimNotFound ClaimNotRWX ClaimNotBound NotLonghorn ShareManagerStopped ShareManagerUnassigned NoShareManager
    NodeNotFound NodeNotReady NodeCordoned NodeTainted NodeMismatch VolumeMismatch NodeFull PodAffinity Unjudged
    SteeringOff NoConsumer NodeAvoided
    CacheNotSynced DeadlineExceeded InternalError
""".split()


def test_the_reasons_are_those_of_the_design_in_the_order_of_its_questions() -> None:
    assert list(Reason) == DESIGN


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_one_camel_case_word(reason: Reason) -> None:
    assert re.fullmatch(r"([A-Z][a-z]*)+(RWX)?", reason)
    assert f"{reason}" == reason.value
    assert reason.name.replace("_", "") == reason.upper()


def test_a_reason_is_about_a_claim_or_about_a_node() -> None:
    assert not CLAIM_REASONS & set(GUARD_REASONS)
    assert len(set(GUARD_REASONS)) == len(GUARD_REASONS)


def test_the_words_of_the_answer_are_fixed() -> None:
    assert list(Outcome) == ["pinned", "preferred", "unchanged"]
    assert list(Mode) == ["required", "preferred"]
    assert list(Source) == ["share-manager-pod", "share-manager", "virt-launcher-pod"]


@pytest.mark.parametrize(
    "value", [ClaimFinding("disk1"), Decision(Outcome.UNCHANGED, Reason.NO_CLAIMS, "", Mode.REQUIRED)]
)
def test_a_decision_does_not_change(value: ClaimFinding | Decision) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.node = "node-b"  # type: ignore[misc]
    assert not hasattr(value, "__dict__")
