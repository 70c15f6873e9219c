"""The steps of a decision. The decision records each step as it takes it, and `explain` prints them."""

from collections.abc import Callable

from msgspec import Struct

from webhook.placement.eligibility import Rule
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import Check
from webhook.placement.reasons import ClaimFinding, OptedInBy, Reason
from webhook.placement.volume_consumers import Consumers
from webhook.placement.votes import Choice


class RulesChecked(Struct, frozen=True):
    """The rules of eligibility in order. `broken` is the reason of the one that ended the decision, None if all hold.

    `opted_in_by` is the source of the VM's opt-in.
    """

    rules: tuple[Rule, ...]
    broken: Reason | None
    opted_in_by: OptedInBy


class ClaimsFollowed(Struct, frozen=True):
    """The claims of the pod, and the nodes of their share-managers."""

    claims: tuple[ClaimFinding, ...]


class ConsumersFound(Struct, frozen=True):
    """The VMs that use the volume of a share-manager pod, and the nodes that the pod prefers to avoid."""

    consumers: Consumers
    avoided: frozenset[str]


class NodeChosen(Struct, frozen=True):
    """The node with the most votes. A migration that `leads_elsewhere` doesn't prefer it."""

    choice: Choice
    leads_elsewhere: bool = False


class NodeChecked(Struct, frozen=True):
    """The checks in force for a node, in their order: the first that fails is the obstacle.

    `contested` is the detail of the check that fails because pinned pods need the node, None if no pod does.
    """

    candidate: Candidate
    checks: tuple[Check, ...]
    contested: str | None = None


Step = RulesChecked | ClaimsFollowed | ConsumersFound | NodeChosen | NodeChecked
Record = Callable[[Step], object]


def ignore(step: Step) -> None:
    """Record nothing."""
