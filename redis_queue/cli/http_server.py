"""The HTTP server of the commands that serve: waitress, with limits that hold before a request is read.

Needs the extra ``web`` or ``metrics``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click
import waitress
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import BaseWSGIServer

from redis_queue.basics.times import monotonic
from redis_queue.basics.waits import signal_handler
from redis_queue.cli.output import harmless
from redis_queue.operate.addresses import network

SERVER: Final[Mapping[str, Any]] = {
    "threads": 8,
    # select() cannot watch descriptors above 1023.
    "asyncore_use_poll": True,
    "max_request_header_size": 16 * 1024,
    "max_request_body_size": 1024 * 1024,
    "ident": None,
    "clear_untrusted_proxy_headers": False,
}

SPARE: Final = 32
"""Descriptors beside the connections: listening sockets, the trigger, connections about to be closed."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Time and connection limits of clients.

    *head*: seconds from the connection, or the end of the last answer, to the end of the next request's headers.
    *request*: seconds to the end of its body. *answer*: seconds for the client to read the answer. *connections*: in
    total. *per_address*: from one IPv4 address or one /64 of IPv6; None if all come from one proxy.
    """

    head: float = 10.0
    request: float = 30.0
    answer: float = 60.0
    connections: int = 200
    per_address: int | None = 50


class Connection(HTTPChannel):
    """A connection that is closed after its deadline, or to make room for a newer one.

    Waitress only has an inactivity timeout: one byte now and then would keep a connection open forever.
    """

    def __init__(self, limits: ClientLimits, server: Any, sock: Any, addr: Any, *rest: Any, **options: Any) -> None:
        self._limits = limits
        self._since = monotonic()
        self.network = network(str(addr[0]))
        self.must_go = False
        super().__init__(server, sock, addr, *rest, **options)
        if limits.per_address is not None:
            self._make_room(limits.per_address, same_network=True)
        self._make_room(limits.connections, same_network=False)

    def readable(self) -> bool:
        """Return whether to read on. Every turn of the server's loop calls it, so it also closes late connections."""
        if self.requests:
            self._since = monotonic()
        elif self.must_go or monotonic() - self._since > self._patience():
            self.handle_close()
            return False
        return bool(super().readable())

    def writable(self) -> bool:
        """Return whether to write on."""
        return self.connected and bool(super().writable())

    def handle_write(self) -> None:
        """Send; after the answer, the deadline of the next request begins."""
        super().handle_write()
        if not self.total_outbufs_len:
            self._since = monotonic()

    def _patience(self) -> float:
        if self.total_outbufs_len:
            return self._limits.answer
        in_body = self.request is not None and self.request.headers_finished
        return self._limits.request if in_body else self._limits.head

    def _make_room(self, most: int, *, same_network: bool) -> None:
        """Close the connection that has waited longest for a request if there are more than *most*, else this one.

        So a client that sends its request at once is served even while others occupy all connections.
        """
        others = (one for one in self._map.values() if isinstance(one, Connection) and one is not self)
        staying = (one for one in others if not one.must_go)
        known = [one for one in staying if not same_network or one.network == self.network]
        if len(known) >= most:
            waiting = (one for one in known if not one.requests)
            # The loop closes it: a descriptor freed now could be reused within this turn.
            min(waiting, key=lambda one: one._since, default=self).must_go = True


def _address(host: object, port: int) -> str:
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def create(app: Callable[..., Any], host: str, port: int, limits: ClientLimits) -> Any:
    """Return a listening server for the WSGI application *app*; its ``run()`` ends with SystemExit.

    Raises the errors of waitress and of the socket.
    """
    sockets: dict[int, Any] = {}
    try:
        server = waitress.create_server(
            app, map=sockets, host=host, port=port, connection_limit=limits.connections + SPARE, **SERVER
        )
    except BaseException:
        wasyncore.close_all(sockets)
        raise
    for one in sockets.values():
        if isinstance(one, BaseWSGIServer):
            one.channel_class = functools.partial(Connection, limits)
    return server


def serve(app: Callable[..., Any], host: str, port: int, started: str, limits: ClientLimits) -> None:
    """Serve until SIGTERM or Ctrl-C; print *started*, with the address in place of its braces."""
    try:
        server = create(app, host, port, limits)
    # An invalid host name fails before the socket is opened.
    except (OSError, ValueError, OverflowError) as error:
        raise click.ClickException(f"cannot listen on {harmless(_address(host, port))}: {error}") from error
    found, chosen = getattr(server, "effective_listen", [(host, getattr(server, "effective_port", port))])[0][:2]
    click.echo(started.format(_address(found, chosen)), err=True)
    # The server ends its threads for this.
    with signal_handler(lambda *_: sys.exit()):
        server.run()
