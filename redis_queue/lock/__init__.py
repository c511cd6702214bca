"""A lock with a lease and a fence, and functions that it serializes."""
