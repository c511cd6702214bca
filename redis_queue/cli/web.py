"""``redis-queue web``: serve the dashboard."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.output import harmless
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import PERMISSIONS

PASSWORD: Final = "REDIS_QUEUE_WEB_PASSWORD"  # noqa: S105 - the name of a variable
USER: Final = "admin"

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


@click.command(cls=StoreCommand)
@options.bind
@options.port(8055)
@click.option("--allow-write", is_flag=True, help="Allow all actions. Default: read-only.")
@click.option(
    "--allow",
    type=click.Choice(list(PERMISSIONS)),
    multiple=True,
    metavar="VERB",
    help=f"Allow only actions with this verb; repeatable. Verbs: {', '.join(PERMISSIONS)}.",
)
@click.option(
    "--auth-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"File with a line name:password per user; or set {PASSWORD} for the user {USER!r}.",
)
@options.hosts
@click.option("--trust-proxy", is_flag=True, help="Trust X-Forwarded-* of one proxy.")
@click.option("--label", default="", help='Name on every page, such as "production".')
@click.option("--timezone", help="Time zone, such as Europe/Berlin.  [default: that of each browser]")
@with_access
def web(
    access: Access,
    *,
    bind: str,
    port: int,
    allow_write: bool,
    allow: tuple[str, ...],
    auth_file: Path | None,
    hosts: tuple[str, ...],
    trust_proxy: bool,
    label: str,
    timezone: str | None,
) -> None:
    """Serve the dashboard until SIGTERM or Ctrl-C.

    It is read-only without --allow-write or --allow. An address other than localhost needs users: --auth-file, or
    REDIS_QUEUE_WEB_PASSWORD.

    Example: redis-queue web --port 8055 --allow retry --allow cancel
    """
    users = _users(auth_file)
    if users is None and not is_loopback(bind):
        raise click.UsageError(
            f"--bind {bind}: everyone who can reach this address could use it. Give --auth-file, or set {PASSWORD}"
        )
    if allow_write and allow:
        raise click.UsageError("--allow-write and --allow: give one of them; --allow-write allows all actions")
    if users is None and trust_proxy and (allow_write or allow):
        option = "--allow-write" if allow_write else "--allow"
        raise click.UsageError(
            f"--trust-proxy {option}: any client of the proxy could act. Give --auth-file, or set {PASSWORD}"
        )
    try:
        from werkzeug.middleware.proxy_fix import ProxyFix  # noqa: PLC0415 - an extra

        from redis_queue.cli import http_server  # noqa: PLC0415
        from redis_queue.web import WebSettings, dashboard  # noqa: PLC0415
        from redis_queue.web.guard import https_only  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException(f"{error}: pip install 'celery-redis-queue[cli,web]'") from error
    settings = WebSettings(
        allow_write=allow_write, allow=allow, users=users, hosts=_hosts(bind, hosts), label=label, timezone=timezone
    )
    app: Any = dashboard(access, settings)
    app.after_request(https_only)
    if trust_proxy:
        app = ProxyFix(app, x_for=1, x_proto=1, x_host=1, x_prefix=1)
    # All clients of a proxy have its address.
    limits = http_server.ClientLimits(per_address=None) if trust_proxy else http_server.ClientLimits()
    verbs = ", ".join(dict.fromkeys(allow))
    mode = "changes allowed" if allow_write else f"only {verbs} allowed" if verbs else "read-only"
    started = f"dashboard on http://{{}}/, {mode}"
    http_server.serve(app, bind, port, started, limits)


def is_loopback(bind: str) -> bool:
    """Return whether all addresses of *bind* are loopback addresses."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(bind or "0.0.0.0", None)}  # noqa: S104 - what "" means
    except OSError as error:
        raise click.BadParameter(f"{harmless(bind)!r}: {error}", param_hint="--bind") from error
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)


def _hosts(bind: str, hosts: tuple[str, ...]) -> list[str]:
    try:
        address = ipaddress.ip_address(bind)
    except ValueError:
        return [*LOCAL_NAMES, *hosts, *([bind] if bind else [])]
    own = [] if address.is_unspecified else [f"[{bind}]" if address.version == 6 else bind]  # noqa: PLR2004
    return [*LOCAL_NAMES, *hosts, *own]


def _users(file: Path | None) -> Mapping[str, str] | None:
    password = os.environ.get(PASSWORD)
    if file is None:
        return None if password is None else {USER: password}
    users: dict[str, str] = {}
    try:
        if file.stat().st_mode & 0o077:
            click.echo(f"warning: --auth-file {harmless(file)} is not private: chmod 600 {harmless(file)}", err=True)
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise click.UsageError(f"--auth-file {file} cannot be read: {reason}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, secret = line.partition(":")
        if not colon:
            raise click.UsageError(f"--auth-file {file}, line {number}: give name:password")
        users[name] = secret
    if not users:
        raise click.UsageError(f"--auth-file {file} contains no users")
    return users
