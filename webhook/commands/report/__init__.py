"""`kubevirt-scheduler report`: the VMs that are apart from their storage, as a table, JSON or a page."""
