"""The check for known bugs of the installed version of Longhorn that concern RWX volumes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from webhook.cluster.caches.kinds import NODES
from webhook.commands.doctor.before_installation import longhorn_version
from webhook.commands.doctor.inspection import Inspection
from webhook.commands.doctor.result import Result, listed, ok, warning
from webhook.placement.objects.fields import text, version_numbers


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug of Longhorn: from `first` up to, but without, `fixed`, on nodes whose kernel is `kernel` or newer."""

    symptom: str
    first: tuple[int, ...]
    fixed: tuple[int, ...]
    sources: tuple[str, ...]
    kernel: tuple[int, ...] = ()


LONGHORN = "https://github.com/longhorn/longhorn/issues"
# Few and certain. Each bug is fixed in a released version, and its source names the versions.
BUGS = (
    Bug(
        'processes get "Remote I/O error" on RWX volumes',
        (1,),
        (1, 11, 3),
        (f"{LONGHORN}/13268", f"{LONGHORN}/13829", "https://github.com/nfs-ganesha/nfs-ganesha/issues/1385"),
        kernel=(6, 19),
    ),
    Bug("an RWX volume may stay in state attaching after a drain", (1, 10), (1, 10, 2), (f"{LONGHORN}/12231",)),
    Bug(
        'users other than root get "permission denied" on RWX volumes',
        (1, 7, 3),
        (1, 8, 2),
        (f"{LONGHORN}/10621", "https://github.com/nfs-ganesha/nfs-ganesha/issues/1132"),
    ),
)


@cache
def kernels(inspection: Inspection) -> dict[str, tuple[int, ...]]:
    """Return the kernel's version of each node, without those that can't be read."""
    found = {
        text(node, "metadata", "name"): version_numbers(text(node, "status", "nodeInfo", "kernelVersion"))
        for node in inspection.items(NODES.path)
    }
    return {name: version for name, version in found.items() if version}


def known_bugs(inspection: Inspection) -> Iterator[Result]:
    """Report the known bugs of the installed version."""
    name = longhorn_version(inspection)
    version, nodes = version_numbers(name), kernels(inspection)
    found = [
        (bug, exposed)
        for bug in BUGS
        if bug.first <= version < bug.fixed
        if (exposed := sorted(node for node, kernel in nodes.items() if kernel >= bug.kernel)) or not bug.kernel
    ]
    for bug, exposed in found:
        cure = f"Upgrade Longhorn to {'.'.join(map(str, bug.fixed))} or newer: {bug.sources[0]}"
        where = (
            f" (nodes with Linux {'.'.join(map(str, bug.kernel))} or newer: {listed(exposed)})" if bug.kernel else ""
        )
        yield warning(f"Longhorn {name}: {bug.symptom}{where}", cure)
    if name and not found:
        yield ok(f"no known bug of Longhorn {name} concerns RWX volumes on these nodes")
