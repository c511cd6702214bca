"""A shop on Django: unpaid orders are cancelled after a time, whatever process dies meanwhile.

``python -m examples.shop migrate``, then ``runserver``, ``celery -A examples.shop worker`` and ``redis_queue_relay``.
They need ``pip install '.[django]'`` and a Redis: that in REDIS_URL, else redis://localhost:6379/0. PAY_WITHIN says how
many seconds customers have, else 900; DATABASE names the file of the database, else ``shop.sqlite3``.
"""

from __future__ import annotations

from examples.shop.celery import app

__all__ = ["app"]
