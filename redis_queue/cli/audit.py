"""Audit of the command line: which command changed what, and who ran it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Final

import click

from redis_queue.cli.output import harmless
from redis_queue.errors import RedisQueueError
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Action, Audit, Subject

MOST_QUEUES: Final = 3
"""Most queues that a line names."""

MAX_USER: Final = 100


class Record:
    """The line of the audit for one command: *verb* on *queues*, with the first *subjects*.

    Create it before the change: the subjects may be gone afterwards. Raises StoreError.
    """

    def __init__(
        self, access: Access, verb: str, queues: Iterable[str], subjects: Sequence[Subject] = (), detail: str = ""
    ) -> None:
        self._audit = Audit(access.catalog.client, access.catalog.prefix)
        self._at = access.inspector.now()
        self._verb, self._subjects, self._detail = verb, subjects, detail
        names = list(dict.fromkeys(queues))
        more = len(names) - MOST_QUEUES
        self._queue = ", ".join(names[:MOST_QUEUES]) + (f" and {more:,} more" if more > 0 else "")

    def write(self, count: int) -> None:
        """Add the line, unless *count* is 0: nothing was changed.

        The change is done, so an audit that cannot be written is only a warning.
        """
        if not count:
            return
        try:
            action = Action(self._at, user(), self._verb, self._queue, count, self._detail, self._subjects)
            self._audit.record([action])
        except RedisQueueError as error:
            click.echo(f"warning: not written to the audit: {harmless(error)}", err=True)


def user() -> str:
    """Return the user and the host of this command."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        # A container may run under an id without a name.
        name = f"uid {os.getuid()}"
    return f"{name[:MAX_USER]}@{socket.gethostname()[:MAX_USER]} (command line)"
