"""Celery messages as the store keeps them: written, read, and made into messages again."""
