"""What a decision found, for `explain`."""

from dataclasses import dataclass, field

from webhook.placement.eligibility import Rule
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import Check
from webhook.placement.objects.facts import Pod
from webhook.placement.reasons import ClaimFinding, OptedInBy, Reason
from webhook.placement.votes import Choice


@dataclass(slots=True)
class Trace:
    """The steps of a decision in order. A field is empty if the decision did not get there.

    `rules` are those of eligibility; `broken` is the reason of the one that ended the decision, None if all hold.
    `opted_in_by` is the source of the VM's opt-in. `consumers` are the pods of the VMs that use the volume of a
    share-manager pod, and `avoided` the nodes that this pod prefers to avoid. `choice` is the node with the most votes;
    a migration that `leads_elsewhere` doesn't prefer it. `candidates` were evaluated by the `checks` in force, in their
    order. `contested` is the detail of the check that fails because pinned pods need the node.
    """

    rules: tuple[Rule, ...] = ()
    broken: Reason | None = None
    opted_in_by: OptedInBy = OptedInBy.NOTHING
    claims: tuple[ClaimFinding, ...] = ()
    consumers: tuple[Pod, ...] | None = None
    avoided: frozenset[str] = frozenset()
    choice: Choice | None = None
    leads_elsewhere: bool = False
    candidates: list[Candidate] = field(default_factory=list)
    checks: tuple[Check, ...] = ()
    contested: str = ""
