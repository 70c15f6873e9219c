"""Scenarios on a whole cluster: `make test-live` runs them on any, `make test` on the playground's."""
