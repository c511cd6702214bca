"""The dashboard in a project without Django's admin."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("queues/", include("redis_queue.contrib.django.urls")),
    path("tasks", include("redis_queue.contrib.django.urls", namespace="without_slash")),
]
