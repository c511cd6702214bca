"""Capture the messages that an app sends at once, before they reach a broker."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.intercepting_producer import InterceptingProducer

if TYPE_CHECKING:
    from celery import Celery

Take = Callable[[Envelope], bool]
"""Called with each message that is sent at once; True: it was taken, False: the broker gets it."""


def capture_amqp(app: Celery, kind: Any, take: Take, now: Callable[[], datetime]) -> Any:
    """Return an AMQP object for *app*, a subclass of *kind*, that gives its messages to *take*.

    ``expires`` in seconds counts from *now*.
    """

    class CapturingAMQP(kind):  # type: ignore[misc]
        def _create_task_sender(self) -> Any:
            send = super()._create_task_sender()

            def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
                if isinstance(producer, InterceptingProducer):  # it has a delay: the store gets it
                    return send(producer, name, message, **options)

                def keep(envelope: Envelope, _: Mapping[str, Any], publish: Callable[[], Any]) -> Any:
                    return None if take(envelope) else publish()

                return send(InterceptingProducer(app, producer, keep), name, message, **options)

            return send_task_message

        @cached_property
        def create_task_message(self) -> Any:
            make = self.task_protocols[app.conf.task_protocol]

            def create_task_message(  # noqa: PLR0917 - as Celery calls it
                task_id: str,
                name: str,
                args: Any = None,
                kwargs: Any = None,
                countdown: Any = None,
                eta: Any = None,
                group_id: Any = None,
                group_index: Any = None,
                expires: Any = None,
                *rest: Any,
                **named: Any,
            ) -> Any:
                if isinstance(expires, numbers.Real):
                    expires = now() + timedelta(seconds=float(expires))
                return make(task_id, name, args, kwargs, countdown, eta, group_id, group_index, expires, *rest, **named)

            return create_task_message

    return CapturingAMQP(app)
