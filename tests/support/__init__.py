"""Builders, fakes and a real control plane, which tests of several folders share. What one folder needs is in it.

Five modules are enough to begin with:

- `builders`: minimal pods, claims, volumes and nodes, a catalog of them, and the decision about a pod.
- `fake_clock`: a clock that a test sets.
- `fake_api_server`: an API server over HTTP, with lists, watches and errors.
- `server_process`: a `serve` process, and clients of its ports.
- `scenario`: a namespace of a real control plane, with nodes, Longhorn volumes and VMs.
"""
