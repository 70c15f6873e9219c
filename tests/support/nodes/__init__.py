"""Three real nodes in user-mode Linux, beside the tests' control plane."""
