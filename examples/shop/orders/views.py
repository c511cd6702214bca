"""The requests of customers."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from examples.shop.orders.models import Order
from examples.shop.orders.tasks import cancel_unpaid
from redis_queue.contrib.django import outbox


@csrf_exempt
@require_POST
@transaction.atomic
def place(request: HttpRequest) -> HttpResponse:
    """Store an order and its deadline in one transaction."""
    order = Order.objects.create(item=request.POST["item"][:100])
    outbox.schedule(cancel_unpaid, (order.pk,), countdown=settings.PAY_WITHIN, task_id=order.deadline)
    if request.POST.get("fail"):
        raise RuntimeError("the shop broke down before the commit")
    return JsonResponse({"order": order.pk}, status=201)


@require_GET
def show(_: HttpRequest, number: int) -> HttpResponse:
    """Return the state of an order."""
    order = get_object_or_404(Order, pk=number)
    return JsonResponse({"order": number, "item": order.item, "state": order.state})


@csrf_exempt
@require_POST
def pay(_: HttpRequest, number: int) -> HttpResponse:
    """Record the payment; cancel the deadline after the commit, since a rollback cannot restore it in Redis."""
    order = get_object_or_404(Order, pk=number, state="open")
    Order.objects.filter(pk=number, state="open").update(state="paid")
    return JsonResponse({"order": number, "deadline_taken_out": outbox.cancel(order.deadline)})
