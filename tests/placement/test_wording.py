"""A decision is described in one sentence, and only an actionable decision causes a warning."""

import re
from typing import Any

import pytest

from tests.support.builders import (
    Object,
    claim,
    injection_for,
    node,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from tests.support.helm_chart import default_values
from webhook.placement import wording
from webhook.placement.objects.fields import printable
from webhook.placement.reasons import Mode, Reason
from webhook.placement.settings import OPT_IN_KEY, Action


def test_the_warning_of_an_observed_dry_run_has_the_reason_and_the_sentence() -> None:
    warning = wording.observed(wording.unchanged(Reason.NOT_OPTED_IN, Mode.REQUIRED))
    assert warning == "kubevirt-scheduler: pod unchanged: NotOptedIn: the VM is not opted in"


def test_every_reason_is_one_camel_case_word() -> None:
    assert [each for each in Reason if not re.fullmatch(r"([A-Z][a-z]*)+(RWX)?", each)] == []
    assert [each for each in Reason if each.name.replace("_", "") != each.upper()] == []


def test_every_reason_comes_with_advice() -> None:
    assert set(wording.ADVICE) == set(Reason)
    for reason, each in wording.ADVICE.items():
        assert each.needed is not each.text.startswith(("No action needed.", "No action needed:")), reason


@pytest.mark.parametrize("advice", [each.text for each in wording.ADVICE.values()])
def test_advice_is_a_whole_sentence_on_one_line(advice: str) -> None:
    assert advice.endswith(".")
    assert advice[0].isupper()
    assert len(advice) <= wording.MAX_WARNING_LENGTH


def test_operators_read_the_names_of_the_charts_values_and_not_of_environment_variables() -> None:
    words = " ".join([*map(str, wording.ADVICE.values()), *wording.SENTENCES.values()])
    named = set(re.findall(r"\bsettings[.](\w+)", words))
    assert {"kubevirtAccounts", "longhornNamespace", "steering"} <= named <= set(default_values()["settings"])
    assert "CO_SCHEDULE_" not in words


UNKNOWN_MODE = {"annotations": {"kubevirt-scheduler/co-schedule-mode": "strict"}}
CLAIM_AND_PV = [claim(), volume()]


NO_MODE = "co-schedule-mode: expected 'required' or 'preferred', using required instead of 'strict'"
CONFLICT = "several nodes serve the claims: node-a is the target node, not node-b"
RUNNING_VM = virt_launcher("vm", node="node-a")
WARNINGS = {
    "an unknown mode": (virt_launcher(**UNKNOWN_MODE), storage(), NO_MODE),
    "an unknown mode, not opted in": (virt_launcher(opt_in=None, **UNKNOWN_MODE), [], ""),
    "a conflict": (virt_launcher(claims=["a", "b"]), [*storage("a", "node-a"), *storage("b", "node-b")], CONFLICT),
    "a share-manager pod": (share_manager_pod(), [*CLAIM_AND_PV, RUNNING_VM, node("b")], ""),
    **{
        reason: (virt_launcher(), objects, f"no node serves claim disk1 ({reason})")
        for reason, objects in (
            (Reason.CLAIM_NOT_FOUND, []),
            (Reason.CLAIM_NOT_RWX, [claim(modes=["ReadWriteOnce"])]),
            (Reason.NOT_LONGHORN, [claim(), volume(driver="nfs")]),
            (Reason.NO_SHARE_MANAGER_EVER, [claim(volumeMode="Block"), volume()]),
        )
    },
    # These pass without anybody's action.
    Reason.CLAIM_NOT_BOUND: (virt_launcher(), [claim(volume="")], ""),
    Reason.NO_SHARE_MANAGER: (virt_launcher(), CLAIM_AND_PV, ""),
    Reason.SHARE_MANAGER_STARTING: (virt_launcher(), [*CLAIM_AND_PV, share_manager(state="starting")], ""),
}


@pytest.mark.parametrize(("new_pod", "objects", "warning"), WARNINGS.values(), ids=WARNINGS)
def test_only_an_actionable_decision_warns(new_pod: Object, objects: list[Object], warning: str) -> None:
    expected = (f"kubevirt-scheduler: {warning}",) if warning else ()
    assert injection_for(new_pod, *objects).warnings == expected


@pytest.mark.parametrize(("opt_in", "number"), [("true", 1), (None, 0)])
def test_observe_mode_does_not_warn_about_a_vm_that_is_not_opted_in(opt_in: str | None, number: int) -> None:
    block = [claim(volumeMode="Block"), volume()]
    assert len(injection_for(virt_launcher(opt_in=opt_in), *block, action=Action.OBSERVE).warnings) == number


STOP, START = "virtctl stop vm1 -n shop", "virtctl start vm1 -n shop"
RESTARTS = f"stop the VM, and start it once its pod is gone: {STOP}, then {START}"


@pytest.mark.parametrize(
    ("strategy", "advice"),
    [
        *((strategy, RESTARTS) for strategy in ("Always", "RerunOnFailure", "Manual", "")),
        ("Once", f"{RESTARTS}, which changes its run strategy from Once to Always"),
        ("Halted", f"start the VM once its pod is gone: {START}"),
        (None, "delete the VMI, and create it again unless a controller does: kubectl delete vmi vm1 -n shop"),
    ],
)
def test_the_commands_that_release_a_vm_fit_its_run_strategy(strategy: str | None, advice: str) -> None:
    assert wording.restart_advice("shop", "vm1", strategy) == advice


@pytest.mark.parametrize(
    "value",
    ["x" * 500, "\n", "ä\x00", ["required"]],
    ids=["a long value", "a line feed", "a control character", "a list"],
)
def test_an_unknown_mode_is_quoted_on_one_line(value: Any) -> None:
    (warning,) = injection_for(
        virt_launcher(annotations={"kubevirt-scheduler/co-schedule-mode": value}), *storage()
    ).warnings
    assert warning.isprintable()
    assert len(warning) <= 120


def test_what_a_terminal_shows_has_no_control_characters() -> None:
    assert printable("ä b") == "ä b"
    assert printable("red\x1b[31m\n") == "red\ufffd[31m\ufffd"


def test_the_advice_to_opt_in_names_the_annotation_of_the_settings() -> None:
    decision = wording.unchanged(Reason.NOT_OPTED_IN, Mode.REQUIRED)
    for key in OPT_IN_KEY, "example.com/near":
        (found,) = wording.advice(decision, key)
        assert found.text == f'Annotate the VM\'s spec.template with {key}: "true" and restart it.'
    assert wording.advice(decision) == (wording.ADVICE[Reason.NOT_OPTED_IN],)
