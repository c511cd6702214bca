"""Publishes with a delay become stored entries."""
