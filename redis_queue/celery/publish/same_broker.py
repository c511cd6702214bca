"""OwnBroker: whether a producer sends where the dispatchers of its app would send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from celery import Celery

_OPTIONS: Final = ("global_keyprefix", "master_name")
"""Options of a transport that lead to other queues on the same server."""


class OwnBroker:
    """The broker that *app* writes to."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._known: set[tuple[Any, ...]] = set()

    def is_that_of(self, connection: Any) -> bool:
        """Tell whether kombu's *connection* leads to it, by whatever login. Nothing connects."""
        named = _as_named(connection)
        if named in self._known:
            return True
        with self._app.connection_for_write() as own:
            same = _as_reached(connection) == _as_reached(own)
        # Only what is the same is kept: an app may get its settings late.
        if same:
            self._known.add(named)
        return same


def _as_named(connection: Any) -> tuple[Any, ...]:
    """Return what a connection was made with; the connections of one pool are all alike."""
    options = connection.transport_options or {}
    # Where there are several to choose from, a connection may be at any of them.
    place = tuple(connection.alt) or (connection.hostname, connection.port, connection.virtual_host)
    return connection.transport_cls, place, *(options.get(name) for name in _OPTIONS)


def _as_reached(connection: Any) -> tuple[Any, ...]:
    """Return the same with the defaults of the transport."""
    info, options = connection.info(), connection.transport_options or {}
    # No database is the first one, and an exchange's "/" is written as nothing, too.
    place = tuple(connection.alt) or (info["hostname"], info["port"], str(info["virtual_host"] or "").strip("/") or "0")
    return connection.get_transport_cls(), place, *(options.get(name) or "" for name in _OPTIONS)
