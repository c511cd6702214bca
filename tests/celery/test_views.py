"""A web view that enqueues messages and task calls from all threads of its server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import redis
from celery import Celery

from redis_queue import InvalidValueError, StoreUnavailableError
from redis_queue.celery import Dispatched, Dispatcher, Store, push_task
from tests.support.celery.brokers import Broker
from tests.support.ports import HOST
from tests.support.servers import RedisServer

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def order_view(app: Celery) -> Application:
    """Return a view that takes an order as JSON: its lines go to a queue, a reminder to the delay queue."""

    def view(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        order = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        store = Store.of(app)
        try:
            message = store.queue("lines").put(order["lines"])
            call = push_task(store.delay_queue(), "shop.remind", [order["id"]], id=order["id"], delay=order["delay"])
        except InvalidValueError as error:
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [str(error).encode()]
        except StoreUnavailableError:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"try again later"]
        start_response("202 Accepted", [("Content-Type", "application/json")])
        return [json.dumps({"message": message, "call": call}).encode()]

    return view


class ThreadingServer(ThreadingMixIn, WSGIServer):
    request_queue_size = 64


class QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def serving(application: Application) -> Iterator[Callable[[Any], tuple[int, bytes]]]:
    """Serve *application*; yield a function that posts JSON and returns status and body."""
    with make_server(HOST, 0, application, ThreadingServer, QuietHandler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()

        def post(body: Any) -> tuple[int, bytes]:
            connection = HTTPConnection(HOST, server.server_port, timeout=10)
            try:
                connection.request("POST", "/orders", json.dumps(body))
                response = connection.getresponse()
                return response.status, response.read()
            finally:
                connection.close()

        try:
            yield post
        finally:
            server.shutdown()
            thread.join(10)


def order(number: int, delay: float = 0) -> dict[str, Any]:
    return {"id": f"order-{number}", "lines": [number, "a line"], "delay": delay}


def test_concurrent_requests_enqueue_everything_once(broker: Broker, redis_url: str, client: redis.Redis) -> None:
    app = broker.app(redis_queue_url=redis_url)
    with serving(order_view(app)) as post, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, (order(number) for number in range(100))))

    assert {status for status, _ in answers} == {202}
    store = Store.of(app)
    messages = store.queue("lines").get_many(500)
    assert sorted(message.body[0] for message in messages) == list(range(100))
    assert {message.id for message in messages} == {json.loads(body)["message"] for _, body in answers}
    assert Dispatcher(app, store.delay_queue()).run() == Dispatched(sent=100)
    expected = sorted(f"order-{number}" for number in range(100))
    assert sorted(broker.take_ids(app.conf.task_default_queue)) == expected


def test_concurrent_requests_of_one_order_leave_one_reminder(app: Celery) -> None:
    with serving(order_view(app)) as post, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, [order(1, delay=60)] * 40))

    assert {status for status, _ in answers} == {202}
    assert [entry.id for entry in Store.of(app).delay_queue()] == ["order-1"]
    assert Store.of(app).queue("lines").stats().ready == 40


def test_invalid_delay_is_a_client_error(app: Celery) -> None:
    with serving(order_view(app)) as post:
        status, body = post(order(1, delay=-5))

    assert status == 400
    assert b"-5" in body
    assert len(Store.of(app).delay_queue()) == 0


def test_unavailable_store_is_an_error_response_and_recovers() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    with RedisServer(tcp=True) as server:
        app.conf.redis_queue_url = server.url
        with serving(order_view(app)) as post:
            assert post(order(1))[0] == 202
            server.kill()
            assert post(order(2))[0] == 503
            server.restart()
            assert post(order(3))[0] == 202
        assert Store.of(app).queue("lines").stats().ready == 1
