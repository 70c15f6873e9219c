"""Reviews of a recorded VM whose body is as large as allowed, each with many small values in another field."""

import json

from tests.support.paths import REVIEWS
from webhook.serving.worker.parser import BODY_LIMIT

VM_START = json.loads((REVIEWS / "vm-start.json").read_bytes())
PLACE = "the repeated values"
REQUIRED, PREFERRED = (f"{each}DuringSchedulingIgnoredDuringExecution" for each in ("required", "preferred"))
POD_TERM = '{"topologyKey":"a","labelSelector":{"matchExpressions":[{"key":"a%d","operator":"DoesNotExist"}]}}'
ONE_OF = {
    "topologyKey": "a",
    "labelSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": [PLACE]}]},
}
VM_LABELS = VM_START["request"]["object"]["metadata"]["labels"]
EXISTS = '{"matchExpressions":[{"key":"a","operator":"Exists"}]}'

# Each row: the field that is replaced, its value, and the JSON that is repeated in place of PLACE. A %d is a number.
SHAPES = {
    "nested lists": ("spec.affinity", {"nodeAffinity": {PREFERRED: [PLACE]}}, "[[[[]]]]"),
    "deeply nested lists": ("spec.affinity", [PLACE], "[" * 400 + "]" * 400),
    "objects": ("spec.affinity", {"nodeAffinity": {"a": [PLACE]}}, '{"a":{}}'),
    "terms": ("spec.affinity", {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [PLACE]}}}, EXISTS),
    "preferred": ("spec.affinity", {"nodeAffinity": {PREFERRED: [PLACE]}}, f'{{"weight":1,"preference":{EXISTS}}}'),
    "anti-affinity": ("spec.affinity", {"podAntiAffinity": {REQUIRED: [PLACE]}}, POD_TERM),
    "affinity": ("spec.affinity", {"podAffinity": {REQUIRED: [PLACE]}}, POD_TERM),
    "values": ("spec.affinity", {"podAntiAffinity": {REQUIRED: [ONE_OF]}}, '"v%d"'),
    "labels": ("metadata.labels", VM_LABELS | {"a": PLACE}, '"a%d":"b"'),
    "quantities": ("spec.containers", [{"resources": {"requests": {"a": PLACE}}}], '"r%d":"%d.001"'),
    "claims": ("spec.volumes", [PLACE], '{"name":"v%d","persistentVolumeClaim":{"claimName":"c%d"}}'),
    "tolerations": ("spec.tolerations", [PLACE], "{}"),
    "containers": ("spec.containers", [PLACE], "{}"),
    "resources of a container": ("spec.containers", [{"resources": [PLACE]}], "[]"),
    "containers of another type": ("spec.containers", {"a": [PLACE]}, "[]"),
    "metadata of another type": ("metadata", [PLACE], "[]"),
    "annotations": ("metadata.annotations", {"kubevirt-scheduler/co-schedule": "true", "a": PLACE}, '"a%d":""'),
    "managed fields": ("metadata.managedFields", [PLACE], "{}"),
}

IN_A_MAP = "annotations", "labels", "quantities"  # whose repeated values replace a key, too


def large_review(shape, size=BODY_LIMIT):
    """The body of a review of this shape, of at most `size` bytes, and its uid."""
    field, value, unit = SHAPES[shape]
    review = json.loads(json.dumps(VM_START))
    parent = review["request"]["object"]
    *path, last = field.split(".")
    for name in path:
        parent = parent[name]
    parent[last] = value
    place = f'"a": {json.dumps(PLACE)}' if shape in IN_A_MAP else json.dumps(PLACE)
    head, tail = json.dumps(review).split(place)
    parts, left = [], size - len(head) - len(tail)
    while True:
        part = unit % ((len(parts),) * unit.count("%d"))
        left -= len(part) + 1
        if left < 0:
            return f"{head}{','.join(parts)}{tail}".encode(), review["request"]["uid"]
        parts.append(part)
