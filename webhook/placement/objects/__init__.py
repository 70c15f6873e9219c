"""Read the fields and facts of Kubernetes objects that a decision uses."""
