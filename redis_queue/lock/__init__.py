"""Lock: one holder at a time, with a lease and a fence; and functions that it serializes."""
