"""The latest known objects and their indexes: the catalog that a decision reads."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from webhook.catalog import Claim, Node, Pod, ShareManager, Volume
from webhook.objects import Fact

Key = tuple[str, str]


class Pods:
    """The unfinished pods, found by namespace and name, site, claim, owner and volume served."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Pod] = {}
        self._by_namespace: defaultdict[str, dict[Key, Pod]] = defaultdict(dict)
        self._load: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._repelling: dict[Key, Pod] = {}
        self._by_claim: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)
        self._by_uid: dict[str, Pod] = {}
        self._serving: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)

    def put(self, pod: Pod) -> None:
        """Keep a pod in place of the one of the same name."""
        self.drop(pod.key)
        self._by_key[pod.key] = pod
        for index in self._indexes(pod):
            index[pod.key] = pod
        if pod.claims:
            self._by_uid[pod.uid] = pod
        self._count(pod, 1)

    def drop(self, key: Key) -> None:
        """Forget a pod; nothing happens where there is none."""
        pod = self._by_key.pop(key, None)
        if pod is None:
            return
        for index in self._indexes(pod):
            index.pop(key, None)
        self._by_uid.pop(pod.uid, None)
        self._count(pod, -1)

    def _indexes(self, pod: Pod) -> Iterator[dict[Key, Pod]]:
        if pod.site:
            yield self._by_namespace[pod.namespace]
        if pod.site and pod.repels:
            yield self._repelling
        for claim in pod.claims:
            yield self._by_claim[pod.namespace, claim]
        if pod.labels.get("longhorn.io/component") == "share-manager":
            yield self._serving[pod.namespace, pod.labels.get("longhorn.io/share-manager", "")]

    def _count(self, pod: Pod, sign: int) -> None:
        if pod.site:
            for resource, amount in pod.requests.items():
                self._load[pod.site][resource] += sign * amount

    def load(self, node: str, besides: Key) -> Mapping[str, int]:
        """Sum up what is asked for on a node."""
        total: Mapping[str, int] = self._load.get(node, {})
        own = self._by_key.get(besides)
        if own is None or own.site != node:
            return total
        return {resource: amount - own.requests.get(resource, 0) for resource, amount in total.items()}

    def placed(self, namespaces: Collection[str]) -> Iterator[Pod]:
        """List the pods of some namespaces that have a site."""
        return (pod for namespace in namespaces for pod in self._by_namespace.get(namespace, {}).values())

    def repelling(self) -> Iterable[Pod]:
        """List the pods that have a site and a required pod anti-affinity."""
        return self._repelling.values()

    def serving(self, namespace: str, volume: str) -> list[Pod]:
        """List the share-manager pods of a volume, in order of their names."""
        return sorted(self._serving.get((namespace, volume), {}).values(), key=lambda pod: pod.key)

    def mounting(self, namespace: str, claim: str) -> list[Pod]:
        """List the virt-launcher pods that mount a claim, themselves or through a hotplug pod that they own."""
        found: dict[Key, Pod] = {}
        for pod in self._by_claim.get((namespace, claim), {}).values():
            owners = [self._by_uid[uid] for uid in pod.owners if uid in self._by_uid]
            for launcher in (pod, *owners):
                if launcher.labels.get("kubevirt.io") == "virt-launcher":
                    found[launcher.key] = launcher
        return list(found.values())


class Store:
    """The catalog: facts put in, questions answered (see catalog.Catalog)."""

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self._claims: dict[Key, Claim] = {}
        self._volumes: dict[str, Volume] = {}
        self._handles: dict[str, Volume] = {}
        self._share_managers: dict[Key, ShareManager] = {}
        self._nodes: dict[str, Node] = {}
        self._pods = Pods()
        for fact in facts:
            self.put(fact)

    def put(self, fact: Fact) -> None:
        """Keep a fact in place of what was known of the same object."""
        match fact:
            case Claim():
                self._claims[fact.namespace, fact.name] = fact
            case Volume():
                self._volumes[fact.name] = fact
                if fact.handle:
                    self._handles[fact.handle] = fact
            case ShareManager():
                self._share_managers[fact.namespace, fact.name] = fact
            case Node():
                self._nodes[fact.name] = fact
            case Pod():
                self._pods.put(fact)

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Find a claim."""
        return self._claims.get((namespace, name))

    def volume(self, name: str) -> Volume | None:
        """Find a PV by its own name."""
        return self._volumes.get(name)

    def volume_served(self, handle: str) -> Volume | None:
        """Find the PV of a Longhorn volume: by its handle, else by its name."""
        return self._handles.get(handle) or self._volumes.get(handle)

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        """Find the ShareManager of a Longhorn volume."""
        return self._share_managers.get((namespace, volume))

    def share_manager_pods(self, namespace: str, volume: str) -> Collection[Pod]:
        """List the share-manager pods of a Longhorn volume, in order of their names."""
        return self._pods.serving(namespace, volume)

    def mounting_pods(self, namespace: str, claim: str) -> Collection[Pod]:
        """List the virt-launcher pods that mount a claim, directly or through their hotplug pod."""
        return self._pods.mounting(namespace, claim)

    def node(self, name: str) -> Node | None:
        """Find a node."""
        return self._nodes.get(name)

    def knows_nodes(self) -> bool:
        """Say whether any node is known at all."""
        return bool(self._nodes)

    def load(self, node: str, besides: Key) -> Mapping[str, int]:
        """Sum up the effective requests of the pods whose site is `node`, without the pod `besides`."""
        return self._pods.load(node, besides)

    def placed_pods(self, namespaces: Collection[str]) -> Iterable[Pod]:
        """List the pods of some namespaces that have a site."""
        return self._pods.placed(namespaces)

    def repelling_pods(self) -> Iterable[Pod]:
        """List the pods that have a site and a required pod anti-affinity."""
        return self._pods.repelling()
