"""`kubevirt-scheduler explain`: every step of a placement decision."""
