"""A cluster to try the webhook on (`make playground`): the tests' control plane, simulated KubeVirt and Longhorn."""
