"""Proofs of what redis_queue promises: all interleavings of its scripts on a model of Redis, and a simulator."""
