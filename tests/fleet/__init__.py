"""Tests of webhook.fleet: the states of all VMs, their next pods, and the plan of their migrations."""
