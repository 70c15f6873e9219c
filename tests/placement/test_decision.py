"""The decision's vocabulary: each reason is one word and belongs to one stage of the decision."""

import re

import pytest

from webhook.placement.reasons import (
    CLAIM_REASONS,
    GUARD_REASONS,
    ClaimFinding,
    Decision,
    Mode,
    Outcome,
    Reason,
    Source,
)

DESIGN_REASONS = """
    CoScheduled ColdStart
    NotAPodCreation NotVirtLauncher NotFromKubeVirt NotOptedIn MigrationTarget EphemeralProvisioning AlreadyBound
    NoClaims AlreadyInjected
    ClaimNotFound ClaimNotRWX ClaimNotBound NotLonghorn NoShareManagerEver
    ShareManagerStarting ShareManagerStopped ShareManagerFailed ShareManagerUnassigned NoShareManager SharedClaimOnly
    CacheStale NodeNotFound NodeNotReady NodeCordoned NodeTainted NodeMismatch VolumeMismatch NodeFull NodeScarce
    PodAffinity Released StartFailed Unjudged
    ShareManagerMoved PendingTooLong NotScheduled
    NotReviewed ScheduledElsewhere VotesChanged
    NotFromLonghorn SteeringOff NoConsumer NodeAvoided
    CacheNotSynced DeadlineExceeded InternalError
""".split()


def test_reasons_match_the_design_in_evaluation_order() -> None:
    assert list(Reason) == DESIGN_REASONS


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_one_camel_case_word(reason: Reason) -> None:
    assert re.fullmatch(r"([A-Z][a-z]*)+(RWX)?", reason)
    assert f"{reason}" == reason.value
    assert reason.name.replace("_", "") == reason.upper()


def test_claim_reasons_and_guard_reasons_do_not_overlap() -> None:
    assert not CLAIM_REASONS & set(GUARD_REASONS)
    assert len(set(GUARD_REASONS)) == len(GUARD_REASONS)


def test_outcomes_modes_and_sources_have_fixed_values() -> None:
    assert list(Outcome) == ["pinned", "preferred", "unchanged"]
    assert list(Mode) == ["required", "preferred"]
    assert list(Source) == ["share-manager-pod", "share-manager", "virt-launcher-pod"]


@pytest.mark.parametrize(
    "value",
    [ClaimFinding("disk1"), Decision(Outcome.UNCHANGED, Reason.NO_CLAIMS, "", Mode.REQUIRED)],
    ids=["a claim finding", "a decision"],
)
def test_a_decision_is_immutable(value: ClaimFinding | Decision) -> None:
    with pytest.raises(AttributeError):
        value.node = "node-b"  # type: ignore[misc]
    assert not hasattr(value, "__dict__")
