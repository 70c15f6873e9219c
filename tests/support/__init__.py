"""Builders for the smallest valid objects, fakes that speak protocols, and the real control plane."""
