"""Leases of the messages that a worker holds: their renewal, their loss, and the limit of their deliveries."""
