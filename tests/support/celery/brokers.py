"""A broker shared with other test runs: unique queue names, and a way to read published messages."""

import contextlib
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from celery._state import _task_stack
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from typing_extensions import Self

from redis_queue.celery import Dispatched, Dispatcher, DurableTasks
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.stored_tasks import StoredTasks
from tests.support.ports import HOST

AMQP_PORT = 5672

# kombu does not annotate them.
connect: Any = Connection
declared: Any = Queue
exchange_of: Any = Exchange


class Broker:
    """A Redis or RabbitMQ broker; queues named by `name()` are deleted on exit."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.options = {"confirm_publish": True} if url.startswith("amqp") else {}
        self._names: list[str] = []
        self._apps: list[Celery] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for app in self._apps:
            close_results(app)
            app.close()
        with connect(self.url) as connection:
            for name in self._names:
                connection.default_channel.queue_delete(name)
                connection.default_channel.exchange_delete(name)

    def name(self, label: str = "queue") -> str:
        name = f"test-{label}-{uuid.uuid4()}"
        self._names.append(name)
        return name

    def forget_later(self, *names: str) -> None:
        """Delete more queues and exchanges on exit."""
        self._names += names

    @property
    def address(self) -> tuple[str, int] | str:
        """Host and port, or the path of a unix socket."""
        parts = urlsplit(self.url)
        return (parts.hostname, parts.port or AMQP_PORT) if parts.hostname else parts.path

    def url_at(self, port: int) -> str:
        """Return the URL of the broker with another port on this host."""
        login, _, _ = urlsplit(self.url).netloc.rpartition("@")
        database = 1 if "virtual_host=1" in self.url else 0
        return f"amqp://{login}@{HOST}:{port}//" if login else f"redis://{HOST}:{port}/{database}"

    def settings(self, **settings: Any) -> dict[str, Any]:
        """Return the settings of an app on this broker, with its own default queue."""
        return {
            "broker_url": self.url,
            "broker_transport_options": self.options,
            "task_default_queue": self.name("default"),
            **settings,
        }

    def app(self, **settings: Any) -> Celery:
        app = Celery("tests", set_as_current=False)
        app.conf.update(self.settings(**settings))
        self._apps.append(app)
        return app

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        with connect(self.url) as connection:
            channel = connection.default_channel
            channel.exchange_declare(exchange, "direct", durable=True, auto_delete=False)
            channel.queue_declare(queue, durable=True, auto_delete=False)
            channel.queue_bind(queue, exchange, routing_key)

    def forget_exchanges(self) -> None:
        """Clear the types of exchanges, which kombu's virtual transports keep for the whole process."""
        with connect(self.url) as connection:
            if not self.url.startswith("amqp"):
                connection.default_channel.state.exchanges.clear()

    def take(self, queue: str) -> list[Any]:
        """Remove and return all messages of *queue*, in order; an empty list if the queue does not exist."""
        with connect(self.url) as connection, contextlib.suppress(*connection.channel_errors):
            bound = declared(queue, channel=connection.default_channel)
            return list(iter(lambda: bound.get(no_ack=True), None))
        return []

    def take_ids(self, queue: str) -> list[str]:
        """Remove all messages of *queue* and return their task ids."""
        return [message.headers["id"] for message in self.take(queue)]


class ManualClock:
    """The `clock` of a queue: milliseconds since the epoch, starting now."""

    def __init__(self) -> None:
        self._now = time.time_ns() // 1_000_000

    def __call__(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += round(seconds * 1000)

    def after(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(self._now / 1000 + seconds, timezone.utc)


def close_results(app: Celery) -> None:
    """End the subscriptions of *app* to results: a result collected later would connect to a dead server."""
    used: Any = app
    consumer: Any = getattr(used._backend, "result_consumer", None)
    if getattr(consumer, "_connection", None) or getattr(consumer, "_pubsub", None):
        consumer.stop()
        # A result that is collected later would subscribe again in order to unsubscribe.
        consumer._pubsub = None


def stored_messages(app: Celery) -> list[Envelope]:
    entries = StoredTasks.of(app).queue.list(limit=500)
    return [Envelope.unpack(entry.payload, entry.id, entry.headers) for entry in entries]


def send_due(delayed: DurableTasks, name: str = "shop.remind", **options: Any) -> str:
    result = delayed.app.send_task(name, countdown=60, **options)
    assert delayed.run_now(result.id)
    return str(result.id)


def dispatch(app: Celery) -> Dispatched:
    with contextlib.closing(Dispatcher(app, StoredTasks.of(app).queue)) as dispatcher:
        return dispatcher.run()


def deliver(app: Celery) -> Dispatched:
    """Make all entries due and dispatch them."""
    delayed = StoredTasks.of(app)
    for entry in delayed.queue.list(limit=500):
        assert delayed.run_now(entry.id)
    return dispatch(app)


@contextlib.contextmanager
def running(task: Any, task_id: str, *args: Any, **request: Any) -> Iterator[None]:
    """Act like a worker that is running *task* with *args*."""
    _task_stack.push(task)
    task.push_request(id=task_id, args=args, kwargs={}, called_directly=False, is_eager=False, **request)
    try:
        yield
    finally:
        task.pop_request()
        _task_stack.pop()
