"""The certificates that the API server trusts: made, kept and renewed. Knows nothing of who serves them."""
