"""A view without transaction handling of its own."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path

from redis_queue.contrib.django import outbox


def place(request: HttpRequest) -> HttpResponse:
    """Schedule a task, then fail if the request asks for it."""
    outbox.schedule("shop.remind", countdown=60, task_id="x")
    if request.POST.get("fail"):
        raise RuntimeError("the view broke down")
    return HttpResponse()


urlpatterns = [path("", place)]
