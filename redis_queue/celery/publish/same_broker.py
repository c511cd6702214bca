"""OwnBroker: tell whether a producer sends to the broker of its app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from celery import Celery

_OPTIONS: Final = ("global_keyprefix", "master_name")
"""Transport options that select other queues on the same server."""


class OwnBroker:
    """The broker to which *app* writes."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._known: set[tuple[Any, ...]] = set()

    def is_that_of(self, connection: Any) -> bool:
        """Tell whether kombu's *connection* leads to this broker, with any login. It does not connect."""
        options = _options_of(connection)
        if options in self._known:
            return True
        with self._app.connection_for_write() as own:
            same = _place_of(connection) == _place_of(own)
        # Others are not remembered: an app may get its settings late.
        if same:
            self._known.add(options)
        return same


def _options_of(connection: Any) -> tuple[Any, ...]:
    """Return the options of a connection; they are equal for all connections of one pool."""
    options = connection.transport_options or {}
    # With several alternatives, a connection may be to any of them.
    place = tuple(connection.alt) or (connection.hostname, connection.port, connection.virtual_host)
    return connection.transport_cls, place, *(options.get(name) for name in _OPTIONS)


def _place_of(connection: Any) -> tuple[Any, ...]:
    """Return the options of a connection with the defaults of its transport."""
    info, options = connection.info(), connection.transport_options or {}
    # The default database is 0; the virtual host "/" may also be written as "".
    place = tuple(connection.alt) or (info["hostname"], info["port"], str(info["virtual_host"] or "").strip("/") or "0")
    return connection.get_transport_cls(), place, *(options.get(name) or "" for name in _OPTIONS)
