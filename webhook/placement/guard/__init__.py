"""The node guard: whether a node can run a pod. Read `feasibility` first."""
