"""Notifications on Flask: delayed mails that can be cancelled in time.

``python -m examples.notifications`` serves it, as ``flask --app examples.notifications run`` does;
``celery -A examples.notifications.worker worker`` sends the mails, into the file in OUTBOX, else ``outbox.txt``.
Both need ``pip install '.[flask]'`` and a Redis: that in REDIS_URL, else redis://localhost:6379/0.
"""

from __future__ import annotations

from examples.notifications.app import create_app

__all__ = ["create_app"]
