"""Steps that are taken one after the other, and the states before, between and after them."""

from collections.abc import Iterable

from msgspec import Struct

from webhook.fleet.simulation.state import State
from webhook.fleet.simulation.steps import Step, apply


class Course(Struct, frozen=True):
    """Steps, and the states before, between and after them."""

    steps: tuple[Step, ...]
    states: tuple[State, ...]


def fold(course: Course, steps: Iterable[Step]) -> Course:
    """Apply steps to the last state of a course, one after the other."""
    for step in steps:
        course = Course((*course.steps, step), (*course.states, apply(course.states[-1], step)))
    return course
