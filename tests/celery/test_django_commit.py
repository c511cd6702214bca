"""A Django task sent on commit is stored on commit, and never after a rollback."""

from collections.abc import Iterator

import pytest
from celery import Celery
from django.db import transaction

from redis_queue.celery import DurableTasks
from tests.support.celery.brokers import Broker

pytestmark = [pytest.mark.parametrize("broker", ["redis"], indirect=True), pytest.mark.usefixtures("shop")]


@pytest.fixture
def delayed(broker: Broker, redis_url: str) -> Iterator[DurableTasks]:
    app = Celery("shop", task_cls="celery.contrib.django.task:DjangoTask", set_as_current=False)
    app.conf.update(broker.settings(redis_queue_url=redis_url))
    yield DurableTasks(app, leases=False)
    app.close()


def remind() -> None:
    """Do nothing."""


def test_task_is_stored_on_commit(delayed: DurableTasks) -> None:
    task = delayed.app.task(remind, name="shop.remind", shared=False)
    with transaction.atomic():
        task.apply_async_on_commit(countdown=60)
        assert delayed.count() == 0
    assert [entry.task for entry in delayed.list()] == ["shop.remind"]


def test_task_is_not_stored_after_a_rollback(delayed: DurableTasks) -> None:
    task = delayed.app.task(remind, name="shop.remind", shared=False)
    with transaction.atomic():
        task.apply_async_on_commit(countdown=60)
        transaction.set_rollback(True)
    assert delayed.count() == 0
