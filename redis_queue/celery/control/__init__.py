"""Revoke and inspect reach stored tasks."""
