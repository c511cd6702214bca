"""UngatedStep: counts messages that pass the flows of their queue or task: their producers do not know them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from celery import bootsteps

from redis_queue.basics.logs import logger_of
from redis_queue.celery.background import Background
from redis_queue.celery.flow.policy import FlowPolicy
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import StoreError

logger = logger_of(__name__)


class UngatedStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Counts in Redis, for each flow, the messages that a worker of its app gets without the header of a flow."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._app = consumer.app
        self._policy = FlowPolicy.of(self._app)
        self._background = Background()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        if self._policy.all():
            make = consumer.create_task_handler
            consumer.create_task_handler = lambda *args, **options: self._counting(make(*args, **options))

    def _counting(self, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def on_message(message: Any) -> Any:
            headers = message.headers or {}
            task = headers.get("task")
            if isinstance(task, str) and FlowHeader.of(headers) is None:
                queue = getattr(message, "queue", None) or message.delivery_info.get("routing_key")
                if names := self._policy.names(task, str(queue)):
                    self._count(names)
            return handle(message)

        return on_message

    def _count(self, names: list[str]) -> None:
        with self._lock:
            is_first = not self._counts
            self._counts.update(names)
        if is_first:
            self._background.run(self._write)

    def _write(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        try:
            StoredTasks.of(self._app).flow.count_ungated(counts)
        except StoreError as error:
            logger.info("cannot count: %s", error, extra={"action": "count_failed"})
