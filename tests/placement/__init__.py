"""Tests of the placement decision: tables, golden cases, and properties."""
