"""All VMs: their state, the pod that KubeVirt would create for each now, and the plan of their migrations. Pure.

Read `machine` and `states` first. All modules are pure. They import no other room than `placement`.
"""
