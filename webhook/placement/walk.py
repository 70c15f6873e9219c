"""The walk to a decision as data, for a person: each question that was asked, and the engine's answer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from webhook.placement import consumers, resolve
from webhook.placement.affinity import matches_nothing
from webhook.placement.catalog import Catalog, Claim, Pod, ShareManager, Volume
from webhook.placement.decision import ClaimFinding, Mode, Reason
from webhook.placement.eligibility import RULES, STEERING_RULES, Rule, is_pod_creation, is_share_manager_pod, mode_of
from webhook.placement.feasibility import Candidate, ResourceFit, resource_fits, run_checks
from webhook.placement.injector import namespace_of
from webhook.placement.resolve import Choice
from webhook.placement.settings import Settings, is_subdomain
from webhook.placement.shape import JsonObject, mapping
from webhook.placement.wording import SENTENCES


@dataclass(frozen=True, slots=True)
class Answer:
    """A question and its answer. `holds` is None where either answer is as good as the other.

    `decisive` is False where nobody asked, or where something before it had decided.
    """

    question: str
    holds: bool | None
    detail: str = ""
    decisive: bool = True


@dataclass(frozen=True, slots=True)
class Chain:
    """What was found of one claim, on its way to a node."""

    finding: ClaimFinding
    claim: Claim | None
    volume: Volume | None
    servers: tuple[Pod, ...]
    manager: ShareManager | None


@dataclass(frozen=True, slots=True)
class Served:
    """What was found of a share-manager pod's volume, on the way to the VMs that use it."""

    volume: str
    pv: Volume | None
    mounting: tuple[Pod, ...]
    consumers: tuple[Pod, ...]
    avoided: frozenset[str]


@dataclass(frozen=True, slots=True)
class Guard:
    """The checks of one node, and its room."""

    node: str
    answers: tuple[Answer, ...]
    resource_fits: tuple[ResourceFit, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """The stations of one pod, as far as it came."""

    rules: tuple[Answer, ...]
    chains: tuple[Chain, ...] = ()
    served: Served | None = None
    choice: Choice | None = None
    guard: Guard | None = None


def walk(request: JsonObject, catalog: Catalog, settings: Settings) -> Walk:
    """Walk with a request. What a pod of another shape than Kubernetes' makes the engine raise is raised here, too."""
    pod, namespace = mapping(request, "object"), namespace_of(request)
    if not is_pod_creation(request):
        return Walk((Answer("does the request create a pod?", False, SENTENCES[Reason.NOT_A_POD_CREATION]),))
    serves = is_share_manager_pod(pod, namespace, settings)
    rules = (
        Answer("does the request create a pod?", True),
        Answer("is it a share-manager pod?", None, "yes, so it is to follow its VM" if serves else "no"),
        *_asked(STEERING_RULES if serves else RULES, pod, settings),
    )
    if rules[-1].holds is False:
        return Walk(rules)
    go = _to_the_vms if serves else _to_the_share_managers
    return go(rules, pod, namespace, catalog, settings)


def _asked(rules: Iterable[Rule], pod: JsonObject, settings: Settings) -> Iterator[Answer]:
    for rule in rules:
        if not rule.holds(pod, settings):
            yield Answer(rule.question, False, SENTENCES[rule.reason])
            return
        yield Answer(rule.question, True)


def _to_the_share_managers(
    rules: tuple[Answer, ...], pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings
) -> Walk:
    findings = resolve.resolve_all(pod, namespace, catalog, settings.longhorn_namespace)
    chains = tuple(_chain(finding, namespace, catalog, settings.longhorn_namespace) for finding in findings)
    choice = resolve.choose(findings)
    if choice is None:
        return Walk(rules, chains)
    volumes = tuple(resolve.known_volumes(findings, namespace, catalog))
    candidate = Candidate(pod, namespace, choice.node, volumes, catalog)
    required = mode_of(pod, settings)[0] is Mode.REQUIRED
    asked = [(check.question, detail, required and settings.node_guard) for check, detail in run_checks(candidate)]
    if not is_subdomain(choice.node):
        asked.insert(0, ("is that a name of a node?", "no node can be called so", True))
    if matches_nothing(pod):
        asked.append(("is there a term to carry a pin?", "the pod's required node affinity has none", required))
    return Walk(rules, chains, choice=choice, guard=_guard(candidate, asked))


def _chain(finding: ClaimFinding, namespace: str, catalog: Catalog, longhorn: str) -> Chain:
    claim = catalog.claim(namespace, finding.claim)
    volume = catalog.volume(claim.volume_name) if claim else None
    if finding.volume is None:
        return Chain(finding, claim, volume, (), None)
    servers = catalog.share_manager_pods(longhorn, finding.volume)
    return Chain(finding, claim, volume, tuple(servers), catalog.share_manager(longhorn, finding.volume))


def _to_the_vms(
    rules: tuple[Answer, ...], pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings
) -> Walk:
    found, avoided = consumers.find_consumers(pod, catalog, settings), consumers.avoided_nodes(pod)
    pv = catalog.volume_by_handle(found.volume)
    mounting = catalog.mounting_pods(*pv.claim) if pv and pv.claim else ()
    served = Served(found.volume, pv, tuple(mounting), found.pods, avoided)
    choice = consumers.choose(found, avoided)
    if choice is None:
        return Walk(rules, served=served)
    candidate = Candidate(pod, namespace, choice.node, (), catalog)
    asked = [(check.question, detail, settings.node_guard) for check, detail in run_checks(candidate)]
    return Walk(rules, served=served, choice=choice, guard=_guard(candidate, asked))


def _guard(candidate: Candidate, asked: Iterable[tuple[str, str | None, bool]]) -> Guard:
    found: list[Answer] = []
    for question, detail, counts in asked:
        decided = any(answer.decisive and not answer.holds for answer in found)
        found.append(Answer(question, detail is None, detail or "", counts and not decided))
    return Guard(candidate.node_name, tuple(found), tuple(resource_fits(candidate)))
