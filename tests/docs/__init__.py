"""What the documentation shows works as shown."""
