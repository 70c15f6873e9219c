"""What a decision found, for `explain`."""

from msgspec import Struct, field

from webhook.placement.eligibility import Rule
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import Check
from webhook.placement.objects.facts import Pod
from webhook.placement.reasons import ClaimFinding, OptedInBy, Reason
from webhook.placement.votes import Choice


class Trace(Struct):
    """The steps of a decision in order. A field is empty if the decision did not get there."""

    rules: tuple[Rule, ...] = ()  # those of eligibility
    broken: Reason | None = None  # the reason of the rule that ended the decision; None if all hold
    opted_in_by: OptedInBy = OptedInBy.NOTHING  # the source of the VM's opt-in
    claims: tuple[ClaimFinding, ...] = ()
    consumers: tuple[Pod, ...] | None = None  # the pods that use the volume of a share-manager pod
    avoided: frozenset[str] = frozenset()  # the nodes that a share-manager pod prefers to avoid
    choice: Choice | None = None
    leads_elsewhere: bool = False  # a migration that doesn't prefer the chosen node
    candidates: list[Candidate] = field(default_factory=list)  # evaluated by the `checks` in force, in their order
    checks: tuple[Check, ...] = ()
    contested: str = ""  # the failed check whose cause are pinned pods that need the node
