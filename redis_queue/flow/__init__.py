"""Flows: limits, rates, pauses and turns of messages, counted in Redis for all workers."""
