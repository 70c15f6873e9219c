"""The checks of `kubevirt-scheduler doctor`: each reads a part of the cluster and reports what it found."""
