"""A real control plane on loopback: etcd, API server, controller manager, scheduler and kwok."""
