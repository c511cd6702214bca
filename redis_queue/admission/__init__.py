"""Admission: whether a message may run now. Limits, rates, pauses and turns of flows, and keys of unique tasks."""
