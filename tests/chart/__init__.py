"""Tests of the Helm chart: rendered by Helm, and installed in a real control plane."""
