"""Tests of the documentation: commands and examples work as shown."""
