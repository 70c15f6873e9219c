"""The indexes of pods and of their terms find what a walk over all pods finds."""

import random
from collections import Counter
from collections.abc import Iterator

from tests.support.builders import (
    HOSTNAME,
    REQUIRED,
    ZONE,
    Object,
    catalog,
    labeled_namespace,
    node,
    pod,
    pod_affinity,
    pod_anti_affinity,
    pod_fact,
    pod_term,
    typed,
    virt_launcher,
)
from tests.support.random_clusters import POD_SELECTORS
from webhook.catalog.pod_tables import MAX_NAMESPACES, MIN_INDEXED, RepellingTerms
from webhook.catalog.store import Store
from webhook.placement.guard.candidate import Candidate

MANY_NAMESPACES = [f"space-{number}" for number in range(MAX_NAMESPACES)]
TEAMS = {"default": "a", "shop": "a", "blog": "b"}
SCOPES: list[Object] = [
    {},
    {},
    {"namespaces": ["shop", "default"]},
    {"namespaces": ["shop", "default", *MANY_NAMESPACES]},
    {"namespaceSelector": {}},
    {"namespaceSelector": {"matchLabels": {"team": "a"}}},
    {"namespaceSelector": {"matchLabels": {"team": "b"}}, "namespaces": ["default"]},
    {"namespaceSelector": {"matchLabels": {"team": "none"}}},
]
NODES = [node(name, labels={ZONE: zone}) for name, zone in (("node-a", "east"), ("node-b", "east"), ("node-c", "west"))]


def random_labels(rng: random.Random) -> dict[str, str]:
    """Draw labels of which some occur on many pods and others on few."""
    tier = rng.choice([{}, {"tier": "front"}, {"tier": "back"}])
    return {"app": rng.choice(["web", "db", *map(str, range(20))])} | tier


def random_term(rng: random.Random) -> Object:
    selector = rng.choice([*POD_SELECTORS, {"matchLabels": {"app": str(rng.randrange(20))}}])
    return pod_term(None, rng.choice([HOSTNAME, ZONE]), labelSelector=selector, **rng.choice(SCOPES))


def selected_by(selector: Object | None, labels: Object) -> bool:
    if selector is None:
        return False
    tests = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, _: key in labels,
        "DoesNotExist": lambda key, _: key not in labels,
    }
    requirements = selector.get("matchExpressions") or []
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        tests[each["operator"]](each["key"], each.get("values")) for each in requirements
    )


def required(pod: Object, kind: str) -> list[Object]:
    return list(((pod["spec"].get("affinity") or {}).get(kind) or {}).get(REQUIRED) or [])


def same_topology(term: Object, one: Object, other: Object) -> bool:
    values = [each["metadata"]["labels"].get(term["topologyKey"]) for each in (one, other)]
    return values[0] is not None and values[0] == values[1]


def naively_selects(term: Object, owner: Object, target: Object) -> bool:
    namespace, selector = target["metadata"]["namespace"], term.get("namespaceSelector")
    named = term.get("namespaces") or ([owner["metadata"]["namespace"]] if selector is None else [])
    in_namespace = namespace in named or selected_by(selector, {"team": TEAMS[namespace]})
    return in_namespace and selected_by(term.get("labelSelector"), target["metadata"]["labels"])


def naively_repelled(vm: Object, target: Object, placed: list[tuple[Object, Object]]) -> bool:
    return any(
        naively_selects(term, owner, other) and same_topology(term, target, where)
        for peer, where in placed
        for owner, other in ((vm, peer), (peer, vm))
        for term in required(owner, "podAntiAffinity")
    )


def naively_attracted(vm: Object, target: Object, placed: list[tuple[Object, Object]]) -> bool:
    terms = required(vm, "podAffinity")
    peers = [where for peer, where in placed if all(naively_selects(term, vm, peer) for term in terms)]
    if all(any(same_topology(term, target, peer) for peer in peers) for term in terms):
        return True
    return not peers and all(naively_selects(term, vm, vm) for term in terms)


def random_pods(rng: random.Random) -> list[Object]:
    """Draw pods on the nodes, some of which repel others."""
    pods = []
    for number in range(3 * MIN_INDEXED):
        repels = pod_anti_affinity(random_term(rng)) if rng.random() < 0.02 else None
        where, namespace = rng.choice(NODES)["metadata"]["name"], rng.choice(["default", "default", "shop", "blog"])
        pods.append(pod(f"pod-{number}", namespace, labels=random_labels(rng), node=where, affinity=repels))
    return pods


def conflicts(rng: random.Random) -> Iterator[tuple[bool, bool]]:
    """Yield whether VMs conflict with the pods of a cluster, by the indexes and by a walk over all pods."""
    pods = random_pods(rng)
    store = catalog(*NODES, *pods, *(labeled_namespace(name, team=team) for name, team in TEAMS.items()))
    for number in range(40):
        item = pods.pop(0)
        if number % 2:  # a watch shows a deleted pod, or a changed one
            store.pods.remove((item["metadata"]["namespace"], item["metadata"]["name"]))
        else:
            item["metadata"]["labels"] = random_labels(rng)
            store.put(*catalog(item).pods.values())
            pods.append(item)
        if number >= 20:  # with the indexes that the first VMs have built
            yield compare(rng, store, pods)


def compare(rng: random.Random, store: Store, pods: list[Object]) -> tuple[bool, bool]:
    by_name = {each["metadata"]["name"]: each for each in NODES}
    placed = [(each, by_name[each["spec"]["nodeName"]]) for each in pods]
    affinity = pod_anti_affinity(*(random_term(rng) for _ in range(rng.randrange(3))))
    affinity |= pod_affinity(*(random_term(rng) for _ in range(rng.randrange(2))))
    vm, target = virt_launcher("vm", labels=random_labels(rng), affinity=affinity), rng.choice(NODES)
    found = Candidate(typed(vm), target["metadata"]["name"], store).pod_affinity
    assert (found.verdict.unsupported, found.passed_over) == ("", False)
    naive = naively_repelled(vm, target, placed) or not naively_attracted(vm, target, placed)
    return found.verdict.conflict is not None, naive


def test_the_index_of_a_term_with_many_namespaces_and_values_takes_little_memory() -> None:
    """140 namespaces and 7 values took 530 KB for each pod: 1,000 pods of one user killed every replica."""
    selector = {"matchExpressions": [{"key": "a", "operator": "In", "values": [str(value) for value in range(7)]}]}
    many = pod_term(None, labelSelector=selector, namespaces=[f"s{number}" for number in range(100)])
    fact, terms = pod_fact(pod("one", node="node-a", affinity=pod_anti_affinity(many))), RepellingTerms()
    assert fact
    assert fact.anti_affinity
    terms.put(fact)
    assert sum(map(len, terms.by_scope.values())) == 7


def test_an_indexed_evaluation_agrees_with_a_naive_one() -> None:
    found = Counter(result for seed in range(30) for result in conflicts(random.Random(seed)))
    assert set(found) == {(True, True), (False, False)}
    assert min(found.values()) > 100
