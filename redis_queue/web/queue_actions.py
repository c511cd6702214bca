"""Actions on a whole queue: pause, resume, put back; each with a preview."""

from __future__ import annotations

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from redis_queue.catalog import AnyQueue, kind_of
from redis_queue.operate.audit import Action
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.chunks import MANY
from redis_queue.web import request_args
from redis_queue.web.confirmation import begin_operation, confirmed_count, new_operation
from redis_queue.web.context import context
from redis_queue.web.permissions import require
from redis_queue.web.queue_lookup import KINDS, queue_of

pages = Blueprint("queue_actions", __name__)


@pages.post("/queue/preview")
def preview() -> str:
    """Show the effect on one queue, with a form to confirm it."""
    queue, verb = _choice()
    return render_template(
        "queue_action.html",
        queue=queue,
        kind=kind_of(queue),
        verb=verb,
        expired=context().inspector.expired(queue) if verb == "putback" else 0,
        stats=queue.stats() if isinstance(queue, RedisQueue) else None,
        operation=new_operation(),
    )


@pages.post("/queue")
def act() -> Response:
    """Pause, resume or put back one queue, once."""
    queue, verb = _choice()
    confirmed = confirmed_count(MANY)
    begin_operation()
    count, at = 1, context().inspector.now()
    if verb == "putback":
        back = queue.put_back(confirmed)
        count = back.returned + back.dead
        flash(f"{back.returned:,} returned, {back.dead:,} dead.")
    else:
        getattr(queue, verb)()
        flash(f"{queue.name} {'paused' if verb == 'pause' else 'resumed'}.")
    context().audit.record([Action(at, g.user, verb, queue.name, count)])
    return redirect(url_for("queues.one", kind=kind_of(queue), name=queue.name), 303)


def _choice() -> tuple[AnyQueue, str]:
    """Return queue and verb of the form."""
    form = request.form
    request_args.reject_repeated(form)
    verb = require(request_args.choice("verb", ("pause", "resume", "putback"), "", form))
    kind, name = request_args.choice("kind", KINDS, "", form), request_args.text("name", form, exact=True)
    queue = queue_of(kind, name or "")
    if verb != "putback" and not isinstance(queue, RedisQueue):
        abort(400, "Only a RedisQueue can be paused. For a DelayQueue, stop its dispatchers instead.")
    return queue, verb
