"""Tests of webhook.catalog: kinds, tables, pins and the inventory."""
