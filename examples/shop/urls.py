"""The pages of the shop; the dashboard for its staff is at /queues/."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from examples.shop.orders import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("queues/", include("redis_queue.contrib.django.urls")),
    path("orders/", views.place, name="place"),
    path("orders/<int:number>/", views.show, name="show"),
    path("orders/<int:number>/pay/", views.pay, name="pay"),
]
