"""Faults on purpose: processes that are killed, and a checker of what they did."""
