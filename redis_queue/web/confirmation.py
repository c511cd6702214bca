"""Confirmation: an action takes a form of its preview, which works once."""

from __future__ import annotations

import re
import secrets
from typing import Final

from flask import abort, request

from redis_queue.web import request_args
from redis_queue.web.context import context

NOT_CONFIRMED: Final = "This action was not confirmed: start with a preview."

_OPERATION = re.compile(r"[\w-]{22}", re.ASCII)


def new_operation() -> str:
    """Return the id of one form of a preview."""
    return secrets.token_urlsafe(16)


def confirmed_count(most: int) -> int:
    """Return the count that the form confirms; refuses forms without one."""
    count = request_args.number("confirmed", 0, 1, most, request.form)
    if not count:
        abort(400, NOT_CONFIRMED)
    return count


def begin_operation() -> None:
    """Refuse forms that do not come from a preview, and forms that were sent before."""
    operation = request_args.text("operation", request.form) or ""
    if not _OPERATION.fullmatch(operation):
        abort(400, NOT_CONFIRMED)
    if not context().audit.begin(operation):
        abort(409, "This form was sent before; the audit shows its effect. For more, start with a new preview.")
