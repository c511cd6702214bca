"""The application factory."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task
from flask import Flask, Response, abort, current_app, jsonify, request, session

from examples.notifications.mail import send_mail
from redis_queue.celery import DurableTasks
from redis_queue.contrib.flask import FlaskDurableTasks


def celery_init_app(app: Flask) -> Celery:
    """Return the Celery app of *app*; its tasks run in the context of *app*, as in Flask's documentation."""

    class FlaskTask(Task):  # type: ignore[misc]
        """A task that runs in the application context."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery = Celery(app.name, task_cls=FlaskTask, set_as_current=False)
    celery.conf.update(app.config["CELERY"])
    app.extensions["celery"] = celery
    return celery


def create_app(**config: Any) -> Flask:
    """Create the application."""
    app = Flask("notifications")
    url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
    app.config.from_mapping(
        SECRET_KEY=os.environ.get("SECRET_KEY", "only for this example"),
        CELERY={"broker_url": url, "task_ignore_result": True},
        OUTBOX=os.environ.get("OUTBOX", "outbox.txt"),
    )
    app.config.update(config)
    celery = celery_init_app(app)
    send = celery.task(send_mail, name="notifications.send_mail", shared=False)
    FlaskDurableTasks(
        app, dashboard="/queues", user=lambda: session.get("user"), may_write=lambda: session.get("user") == "admin"
    )

    @app.post("/notifications")
    def plan() -> tuple[Response, int]:
        """Schedule a mail."""
        seconds = request.form.get("in", 60.0, type=float)
        result = send.apply_async((request.form["to"], request.form["text"]), countdown=seconds)
        return jsonify(id=result.id), 201

    @app.delete("/notifications/<id_>")
    def withdraw(id_: str) -> Response:
        """Cancel a mail that was not sent yet."""
        durable: DurableTasks = current_app.extensions["redis_queue"]
        if not durable.cancel(id_):
            abort(404, "It was sent, withdrawn, or never planned.")
        return jsonify(withdrawn=id_)

    return app
