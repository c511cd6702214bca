"""URLs of the dashboard: ``path("queues/", include("redis_queue.contrib.django.urls"))``."""

from __future__ import annotations

from django.urls import re_path

from redis_queue.contrib.django.views import dashboard_view

app_name = "redis_queue"
urlpatterns = [re_path(r"^(?P<path>.*)$", dashboard_view, name="dashboard")]
