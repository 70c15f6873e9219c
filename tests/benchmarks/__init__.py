"""Tests of the parts of the benchmarks that results depend on."""
