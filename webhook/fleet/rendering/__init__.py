"""The pod that KubeVirt would create for a VM now. Read `next_pod` first."""
