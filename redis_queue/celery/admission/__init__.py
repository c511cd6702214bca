"""Admission: which flows and unique keys a call belongs to, where its message waits, and when a worker takes it."""
