"""The settings of the shop."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
DEBUG = False
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
USE_TZ = True
ROOT_URLCONF = "examples.shop.urls"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "redis_queue.contrib.django",
    "redis_queue.contrib.django.outbox",
    "examples.shop.orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def database(place: str) -> dict[str, str]:
    """Return the options for a file of SQLite, or for ``postgresql://user:password@host:port/name`` and ``mysql://``."""
    if "://" not in place:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": place}
    url = urlsplit(place)
    if url.scheme == "mysql" and find_spec("MySQLdb") is None:
        import_module("pymysql").install_as_MySQLdb()
    return {
        "ENGINE": f"django.db.backends.{url.scheme}",
        "NAME": url.path[1:],
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": url.hostname or "",
        "PORT": str(url.port or ""),
    }


DATABASES = {"default": database(os.environ.get("DATABASE", "shop.sqlite3"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL") or os.environ.get("REDIS_URL", "redis://localhost:6379/0")
CELERY_TASK_IGNORE_RESULT = True
# Each redis_queue_* setting may be set here, with the prefix CELERY_.
CELERY_REDIS_QUEUE_URL = os.environ.get("REDIS_QUEUE_URL", CELERY_BROKER_URL)

# Seconds that a customer has for the payment.
PAY_WITHIN = float(os.environ.get("PAY_WITHIN", "900"))
