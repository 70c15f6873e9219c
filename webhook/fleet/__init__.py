"""All VMs: their state, the pod that KubeVirt would create for each now, and the plan of their migrations. Pure.

Read `states` first. The modules are pure like those of `placement`, which is the only room that they import.
"""
