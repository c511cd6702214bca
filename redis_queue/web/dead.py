"""Dead letters: why they died, and their way back."""

from __future__ import annotations

import re
from typing import Any, Final

from flask import Blueprint, abort, render_template, request

from redis_queue.console.dead import Filter, Place, as_task
from redis_queue.console.faults import Faults
from redis_queue.inspector import kind_of
from redis_queue.keys import is_id
from redis_queue.web import asked
from redis_queue.web.desk import desk
from redis_queue.web.named import reference, sound_queues

pages = Blueprint("dead", __name__)

ROWS: Final = 50
MOST_ROWS: Final = 100

CONDITIONS: Final = ("reason", "task", "id_prefix")

_PLACE = re.compile(r"(\d{1,6})\.(\d{1,9})", re.ASCII)


@pages.get("/dead")
def show() -> str:
    """List dead letters that match, oldest first in each queue."""
    asked.only("name", *CONDITIONS, "after", "limit", "body")
    name = asked.text("name", exact=True)
    faults = Faults()
    queues, counts = sound_queues(name, faults)
    chosen = filter_of(request.args)
    page = chosen.page(queues, _place(asked.text("after")), asked.number("limit", ROWS, 1, MOST_ROWS), faults)
    return render_template(
        "dead.html",
        name=name,
        names=sorted({known.name for known in desk().inspector.known()}),
        rows=[
            (kind_of(queue), queue, letter, as_task(letter), reference(queue, letter.id))
            for queue, letter in page.items
        ],
        page=page,
        after=None if page.next is None else "{}.{}".format(*page.next),
        first=request.args.get("after", "") == "",
        asked={key: request.args.get(key, "").strip() for key in CONDITIONS},
        link={key: value for key, value in request.args.items() if key != "after" and value},
        total=None if chosen else sum(row.dead for row in counts),
        broken=faults.rows,
        with_body=asked.flag("body"),
        is_id=is_id,
        now=desk().inspector.now(),
    )


def filter_of(values: Any) -> Filter:
    """Return what a form or an address asks for."""
    return Filter(asked.text("reason", values), asked.text("id_prefix", values), asked.text("task", values))


def _place(text: str | None) -> Place:
    if text is None:
        return 0, 0
    found = _PLACE.fullmatch(text)
    if found is None:
        abort(400, "after: go on by the link at the end of a page.")
    return int(found[1]), int(found[2])
