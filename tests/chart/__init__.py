"""The Helm chart: rendered by Helm, and installed in the real control plane."""
