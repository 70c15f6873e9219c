"""The command line, as a person calls it."""
