"""Celery messages as the store keeps them: write them, read them, and restore them."""
