"""`kubevirt-scheduler doctor`: each module checks one part of the cluster and reports what it found."""
