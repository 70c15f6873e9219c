"""The decision: tables, golden cases, and properties."""
