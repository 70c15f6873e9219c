"""What the steps of a simulation do to a VM, and the words for it."""

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct

from webhook.fleet.simulation.steps import Action


class Effect(StrEnum):
    """What a drain does to a VM."""

    MIGRATES = "Migrates"
    IO_PAUSES = "IOPauses"
    IO_HANGS = "IOHangs"
    RESTARTS = "Restarts"
    STOPS = "Stops"
    BLOCKS = "Blocks"


_DOES = {
    Effect.MIGRATES: "migrates",
    Effect.IO_PAUSES: "I/O pauses",
    Effect.IO_HANGS: "I/O hangs",
    Effect.RESTARTS: "restarts",
    Effect.STOPS: "stops",
    Effect.BLOCKS: "blocks",
}
_MAY = {
    Effect.MIGRATES: "may migrate",
    Effect.IO_PAUSES: "I/O may pause",
    Effect.IO_HANGS: "I/O may hang",
    Effect.RESTARTS: "may restart",
    Effect.STOPS: "may stop",
    Effect.BLOCKS: "may block",
}
_OF_DISKS = {Effect.IO_PAUSES, Effect.IO_HANGS}
# How a step ends an effect.
_ENDS = {Action.UNCORDON: "uncordon", Action.START: "it is started"}


class Event(Struct, frozen=True):
    """An effect of one step on a VM."""

    effect: Effect
    step: int  # its index in the course
    may: bool = False  # a race decides whether it happens
    until: Action | None = None  # the kind of the step that ends it; None if it ends by itself, or not at all
    until_step: int | None = None  # its index in the course
    lasts: bool = False  # nothing of the course ends it
    why: str = ""


def words_of(events: Sequence[Event]) -> str:
    """Return what happens to a VM, such as "Migrates, then I/O pauses, then may restart"."""
    words = "".join(_joined(before, event) for before, event in pairwise((None, *dict.fromkeys(events))) if event)
    return words[:1].upper() + words[1:] or "Continues"


def reasons_of(events: Sequence[Event]) -> str:
    """Return the reasons of the events, each once."""
    return "; ".join(dict.fromkeys(each.why for each in events if each.why))


def _joined(before: Event | None, event: Event) -> str:
    if before is None:
        return _of_event(event)
    # A race decides between two outcomes of one step.
    instead = before.may and event.may and before.step == event.step and not {before.effect, event.effect} & _OF_DISKS
    return f", {'or' if instead else 'then'} {_of_event(event)}"


def _of_event(event: Event) -> str:
    words = (_MAY if event.may else _DOES)[event.effect]
    if event.until:
        return f"{words} until {_ENDS.get(event.until, event.until)}"
    return f"{words} until somebody acts" if event.lasts else words
