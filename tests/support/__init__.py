"""Test helpers: builders of minimal objects, fake servers, a fake Longhorn, and a real control plane."""
