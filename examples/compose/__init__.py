"""Compose files with more than one Redis, and the app of each: see docs/scaling.md."""
