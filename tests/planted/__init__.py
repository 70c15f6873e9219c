"""Planted bugs: what the tests must catch, and the program that shows that they do."""
