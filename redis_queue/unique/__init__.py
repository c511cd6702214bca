"""Unique tasks: at most one message of a key waits, or waits or runs; counted in Redis for all producers."""
