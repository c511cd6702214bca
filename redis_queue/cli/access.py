"""Which Redis a command works on: ``--url`` and ``--prefix``, or what a Celery app is configured with."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from redis_queue.celery.store import Store
from redis_queue.cli.ending import INTERRUPTED_AT_ONCE, code_of
from redis_queue.cli.output import harmless, show_json
from redis_queue.errors import RedisQueueError
from redis_queue.inspector import Inspector
from redis_queue.operate.access import Access, AppAccess
from redis_queue.store.connection import connect
from redis_queue.store.redis_errors import redact

JSON: Final = "--json"

_AS_JSON: Final = "redis_queue.as_json"

_PLACE: Final = "redis_queue.place"


class Group(click.Group):
    """A group that tells in JSON, too, why none of its commands could be called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the arguments."""
        as_json = JSON in args
        with telling(as_json=as_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_AS_JSON] = as_json
        return context

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant."""
        with telling(as_json=JSON in args):
            return super().resolve_command(ctx, args)


@contextmanager
def telling(*, as_json: bool) -> Iterator[None]:
    """With *as_json*, print the error that leaves this as JSON, without a password."""
    try:
        yield
    except click.UsageError as error:
        if as_json:
            show_json({"error": redacted(error).format_message()})
        raise
    except RedisQueueError as error:
        if as_json:
            show_json({"error": redact(str(error))})
        raise


def is_json(ctx: click.Context) -> bool:
    """Tell whether the command that is called by *ctx*, that of a group, is to answer in JSON."""
    return bool(ctx.meta.get(_AS_JSON))


class Command(click.Command):
    """A command whose errors are one line each, with one meaning of exit codes.

    0 done, 1 the store or something else failed, 2 it was asked for something that cannot be, 130 interrupted before
    there was anything to tell. With ``--json`` an error is one JSON object, too.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the arguments; no error shows a password."""
        as_json = JSON in args and any(parameter.name == "as_json" for parameter in self.params)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            told = redacted(error)
            if as_json:
                show_json({"error": told.format_message()})
            raise told from None

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command; an error of redis_queue becomes one line and an exit code."""
        as_json = ctx.params.get("as_json")
        try:
            return super().invoke(ctx)
        except RedisQueueError as error:
            click.echo(f"error: {harmless(error)}", err=True)
            if as_json:
                show_json({"error": str(error)})
            # In the group that main() runs, nothing else would set the code.
            sys.exit(code_of(error))
        except click.ClickException as error:
            if as_json:
                show_json({"error": error.format_message()})
            raise
        except (click.Abort, KeyboardInterrupt) as error:
            if as_json:
                show_json({"error": "interrupted"})
            if isinstance(error, click.Abort):
                # Whoever called the group tells of it.
                raise
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED_AT_ONCE)


class UrlCommand(Command):
    """A command with ``--url``, unless a Celery app says it."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return what the command takes where it is called."""
        own = super().get_params(ctx)
        return own if app_of(ctx) is not None else [*own, *self.places()]

    def places(self) -> list[click.Parameter]:
        """Return the options that say where the queues are."""
        return [_url]


class StoreCommand(UrlCommand):
    """A command with an Access: it has ``--url`` and ``--prefix``, unless a Celery app says them."""

    def places(self) -> list[click.Parameter]:
        """Return the options that say where the queues are."""
        return [_url, _prefix]


def redacted(error: click.UsageError) -> click.UsageError:
    """Return *error*, without the password that it quotes."""
    text = error.format_message()
    return error if redact(text) == text else click.UsageError(redact(text), error.ctx)


def with_access(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the Access as the first argument."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(_access(click.get_current_context()), *args, **kwargs)

    return wrapper


def with_url(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the URL of the Redis as the first argument."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ctx = click.get_current_context()
        app = app_of(ctx)
        return function(ctx.meta[_PLACE]["url"] if app is None else Store.of(app).url, *args, **kwargs)

    return wrapper


def with_app(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the Celery app as the first argument; without one the command ends with a line that says how to name it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ctx = click.get_current_context()
        app = app_of(ctx)
        if app is None:
            name = ctx.info_name
            raise click.UsageError(
                f"{name} needs a Celery app: redis-queue -A APP {name}, or celery -A APP redis-queue {name}"
            )
        return function(app, *args, **kwargs)

    return wrapper


def app_of(ctx: click.Context) -> Any:
    """Return the Celery app that the group was given, or None."""
    return getattr(ctx.obj, "app", None)


def _access(ctx: click.Context) -> Access:
    app = app_of(ctx)
    if app is not None:
        return AppAccess(app)
    place = ctx.meta[_PLACE]
    return Access(Inspector(connect(place["url"], check=False), prefix=place["prefix"]))


def _keep(ctx: click.Context, parameter: click.Parameter, value: str) -> None:
    ctx.meta.setdefault(_PLACE, {})[parameter.name] = value


_url: Final = click.Option(
    ["--url"],
    # The second name is that of the reference application.
    envvar=["REDIS_QUEUE_URL", "REDIS_URL"],
    default="redis://localhost:6379/0",
    show_default=True,
    expose_value=False,
    callback=_keep,
    help="The Redis; or set REDIS_QUEUE_URL, which hides a password from the process list.",
)
_prefix: Final = click.Option(
    ["--prefix"],
    envvar="REDIS_QUEUE_PREFIX",
    default="redis_queue",
    show_default=True,
    expose_value=False,
    callback=_keep,
    help="First part of every key.",
)
