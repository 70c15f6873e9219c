"""`benchmark`, and the probe that it runs in pods: what a VM gains beside its share-manager."""
