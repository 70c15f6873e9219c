"""Random fleets: what the tools say of their VMs is followed on the real control plane, and compared."""
