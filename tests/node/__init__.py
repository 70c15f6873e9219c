"""Tests on a real node."""
