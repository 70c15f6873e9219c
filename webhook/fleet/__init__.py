"""All VMs: their state, the pod that KubeVirt would create for each now, and the plan of their migrations. Pure.

Read `machine` and `states` first. The modules are pure like those of `placement`, the only room that they import.
"""
