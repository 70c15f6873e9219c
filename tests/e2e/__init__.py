"""The webhook process in the real control plane."""
