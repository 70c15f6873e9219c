"""The tests, in the same rooms as the code. `support` has the builders and the fakes."""
