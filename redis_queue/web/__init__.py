"""The dashboard: a WSGI application with queues, scheduled tasks and dead letters (extra ``web``)."""

from __future__ import annotations

from redis_queue.web.app import dashboard
from redis_queue.web.settings import WebSettings

__all__ = ["WebSettings", "dashboard"]
