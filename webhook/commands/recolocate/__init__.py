"""`kubevirt-scheduler recolocate`: plan, run and show live migrations to the node of the storage."""
