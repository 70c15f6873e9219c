"""Bringing running VMs to their storage: which can be moved, what that gains, the plan for all, and its run."""
