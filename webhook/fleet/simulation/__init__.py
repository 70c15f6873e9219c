"""The cluster after steps that nobody has taken yet: `state` holds it, and `steps` applies one step."""
