"""Tests of the container image: it is built and run."""
