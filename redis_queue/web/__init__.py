"""The dashboard: a WSGI application that shows what waits, what runs and what died (extra ``web``)."""

from __future__ import annotations

from redis_queue.web.app import dashboard
from redis_queue.web.settings import WebSettings

__all__ = ["WebSettings", "dashboard"]
