"""Extend revoke and inspect to stored tasks."""
