"""`kubevirt-scheduler opt-in` and `opt-out`: write the opt-in annotation into the templates of VMs."""
