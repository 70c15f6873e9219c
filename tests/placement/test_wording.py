"""A decision is said in one sentence, and a warning only where a person can act."""

from typing import Any

import pytest

from tests.support.builders import (
    Object,
    claim,
    decided,
    injected,
    node,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from webhook.placement import wording
from webhook.placement.decision import CLAIM_REASONS, GUARD_REASONS, ClaimFinding, Decision, Mode, Outcome, Reason
from webhook.placement.resolve import Choice

# What these say depends on names and figures, so functions say it.
SAID_BY_FUNCTIONS = {
    Reason.CO_SCHEDULED,
    *CLAIM_REASONS,
    *GUARD_REASONS,
    Reason.NO_CONSUMER,
    Reason.NODE_AVOIDED,
    Reason.INTERNAL_ERROR,
}
A, B, C = (ClaimFinding(name.lower(), node=node) for name, node in (("A", "node-a"), ("B", "node-b"), ("C", "node-b")))


def test_every_reason_has_a_sentence_or_a_function() -> None:
    assert set(Reason) - set(wording.SENTENCES) == SAID_BY_FUNCTIONS


def test_every_reason_comes_with_advice() -> None:
    assert set(wording.ADVICE) == set(Reason)


@pytest.mark.parametrize("sentence", wording.SENTENCES.values())
def test_a_sentence_goes_on_after_the_reason(sentence: str) -> None:
    assert sentence
    assert not sentence.endswith(".")
    assert sentence[0].islower()


@pytest.mark.parametrize("advice", wording.ADVICE.values())
def test_advice_is_a_whole_sentence_on_one_line(advice: str) -> None:
    assert advice.endswith(".")
    assert advice[0].isupper()
    assert len(advice) <= wording.WARNING_LENGTH


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        (wording.placed((A,), Choice("node-a"), Mode.REQUIRED), "pinned to node-a, which serves claim a"),
        (wording.placed((A,), Choice("node-a"), Mode.PREFERRED), "prefers node-a, which serves claim a"),
        (
            wording.placed((B, A, C), Choice("node-b", ("node-a",)), Mode.REQUIRED),
            "pinned to node-b, which serves claims b and c; claim a is served by node-a",
        ),
        (
            wording.softened((A,), Choice("node-a"), "it is cordoned", Outcome.PREFERRED),
            "node-a serves claim a, but it is cordoned; it is preferred, not required",
        ),
        (
            wording.softened((A,), Choice("node-a"), "it does not exist", Outcome.UNCHANGED),
            "node-a serves claim a, but it does not exist; nothing was added",
        ),
        (
            wording.unserved(
                [ClaimFinding("a", reason=Reason.CLAIM_NOT_RWX), ClaimFinding("b", reason=Reason.NOT_LONGHORN)]
            ),
            "no claim has a node: a (ClaimNotRWX), b (NotLonghorn)",
        ),
        (wording.steered("node-a", 1), "prefers node-a, where 1 VM of this volume runs"),
        (wording.steered("node-a", 2), "prefers node-a, where 2 VMs of this volume run"),
        (
            wording.not_steered("node-a", "it is full"),
            "node-a runs a VM of this volume, but it is full; nothing was added",
        ),
    ],
)
def test_a_decision_is_said_with_its_names(sentence: str, said: str) -> None:
    assert sentence == said


def test_three_claims_are_listed_as_people_list_things() -> None:
    claims = [ClaimFinding(name, node="node-a") for name in ("a", "b", "c")]
    assert wording.placed(tuple(claims), Choice("node-a"), Mode.REQUIRED).endswith("serves claims a, b and c")


@pytest.mark.parametrize(("length", "kept"), [(119, 119), (120, 120), (121, 120), (1000, 120)])
def test_a_warning_is_cut_to_what_reaches_its_reader(length: int, kept: int) -> None:
    cut = wording.shortened("x" * length)
    assert len(cut) == kept
    assert cut.endswith("...") is (length > 120)


MODE = {"annotations": {"kubevirt-scheduler/co-schedule-mode": "strict"}}
BEHIND = [claim(), volume()]


@pytest.mark.parametrize(
    ("made", "objects", "said"),
    [
        pytest.param(virt_launcher(), [*storage(), node()], [], id="all is well"),
        pytest.param(
            virt_launcher(**MODE),
            storage(),
            ["co-schedule-mode 'strict' is none; 'required' and 'preferred' are: required is used"],
            id="no such mode",
        ),
        pytest.param(
            virt_launcher(claims=["a", "b"]),
            [*storage("a", "node-a"), *storage("b", "node-b")],
            ["the claims are served by several nodes: node-a is meant, not node-b"],
            id="a disagreement",
        ),
        pytest.param(
            virt_launcher(),
            [*storage(), node(ready="False")],
            ["NodeNotReady: node-a serves claim disk1, but it is not Ready; it is preferred, not required"],
            id="softened",
        ),
        *(
            pytest.param(virt_launcher(), objects, [f"no claim has a node: disk1 ({reason})"], id=reason)
            for objects, reason in (
                ([], Reason.CLAIM_NOT_FOUND),
                ([claim(modes=["ReadWriteOnce"])], Reason.CLAIM_NOT_RWX),
                ([claim(), volume(driver="nfs")], Reason.NOT_LONGHORN),
            )
        ),
        *(
            pytest.param(virt_launcher(), objects, [], id=f"normal life: {reason}")
            for objects, reason in (
                ([claim(volume="")], Reason.CLAIM_NOT_BOUND),
                (BEHIND, Reason.NO_SHARE_MANAGER),
                ([*BEHIND, share_manager(state="stopped")], Reason.SHARE_MANAGER_STOPPED),
                ([*BEHIND, share_manager(owner="")], Reason.SHARE_MANAGER_UNASSIGNED),
            )
        ),
        pytest.param(virt_launcher(claims=["disk1", "gone"]), BEHIND, [], id="one claim of two is normal"),
        pytest.param(virt_launcher(opt_in=None, **MODE), [], [], id="not opted in"),
        pytest.param(
            share_manager_pod(), [*BEHIND, virt_launcher("vm", node="node-a"), node("b")], [], id="not steered"
        ),
    ],
)
def test_a_warning_is_given_only_where_a_person_can_act(made: Object, objects: list[Object], said: list[str]) -> None:
    assert injected(made, *objects).warnings == tuple(f"kubevirt-scheduler: {sentence}" for sentence in said)


def test_several_warnings_are_given_one_by_one_and_none_is_too_long() -> None:
    names = [f"{letter * 200}" for letter in "ab"]
    served = [*storage(names[0], "node-a"), *storage(names[1], "node-b"), node(ready="False")]
    found = injected(virt_launcher(claims=names, annotations={**MODE["annotations"], "x": "y"}), *served).warnings
    assert len(found) == 3
    assert all(len(warning) <= 120 for warning in found)


@pytest.mark.parametrize(
    "value", ["x" * 500, "\n", "ä\x00", ["required"]], ids=["long", "a line feed", "odd", "a list"]
)
def test_a_mode_that_is_none_is_quoted_on_one_line(value: Any) -> None:
    (warning,) = injected(
        virt_launcher(annotations={"kubevirt-scheduler/co-schedule-mode": value}), *storage()
    ).warnings
    assert warning.isprintable()
    assert len(warning) <= 120


def test_a_disagreement_names_only_the_nodes_that_were_voted_for() -> None:
    state = [claim("state", labels={"persistent-state-for": "vm1"}), *storage("state", "node-c")[1:]]
    made = virt_launcher(claims=["a", "b", "state"])
    injection = injected(made, *storage("a", "node-a"), *storage("b", "node-b"), *state)
    assert "node-c" not in injection.decision.message
    assert injection.warnings == (
        "kubevirt-scheduler: the claims are served by several nodes: node-a is meant, not node-b",
    )


def test_a_decision_without_a_claim_warns_of_nothing() -> None:
    assert wording.warnings(Decision(Outcome.UNCHANGED, Reason.NO_CLAIMS, "", Mode.REQUIRED), None) == ()


def test_the_decision_annotation_is_reason_and_sentence() -> None:
    decision = decided(virt_launcher(), *storage())
    assert f"{decision.reason}: {decision.message}" == "CoScheduled: pinned to node-a, which serves claim disk1"
