"""The Redis of a command: ``--url`` and ``--prefix``, or the configuration of a Celery app."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from redis_queue.cli.output import harmless, show_json
from redis_queue.cli.report import INTERRUPTED_AT_ONCE, code_of
from redis_queue.errors import ConfigurationError, RedisQueueError
from redis_queue.store.connection import connect
from redis_queue.store.redis_errors import redact

if TYPE_CHECKING:
    from celery import Celery

    from redis_queue.operate.access import Access

JSON: Final = "--json"

_STORE: Final = "redis_queue.store"
_APP, _LOADED = "redis_queue.app", "redis_queue.loaded_app"

_CHOSEN: Final = "redis_queue.chosen"
"""The option of the command line that chose the Redis."""


class Group(click.Group):
    """A group whose usage errors are JSON, too, if ``--json`` is given."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments."""
        with json_errors(as_json=JSON in args):
            return super().make_context(info_name, args, parent, **extra)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters: with those that choose an app or a Redis, except for ``celery -A app``."""
        own = super().get_params(ctx)
        return own if _given_by_celery(ctx) else [*own, *chosen_by(hidden=ctx.parent is not None)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of *args*."""
        with json_errors(as_json=JSON in args):
            return super().resolve_command(ctx, args)


@contextmanager
def json_errors(*, as_json: bool) -> Iterator[None]:
    """With *as_json*, print an error of the block as JSON, too, without a password."""
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


class Command(click.Command):
    """A command whose errors are one line each. With ``--json`` an error is one JSON object, too.

    Exit codes: 0 done, 1 failed, 2 invalid arguments or settings, 130 interrupted before there was a result.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters: with ``--app``, except for ``celery -A app``."""
        own = super().get_params(ctx)
        return own if _given_by_celery(ctx) else [*own, app_option(hidden=True)]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments; no error shows a password."""
        as_json = JSON in args and any(parameter.name == "as_json" for parameter in self.params)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            safe = redacted(error)
            if as_json:
                show_json({"error": safe.format_message()})
            raise safe from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of redis_queue becomes one line and an exit code."""
        as_json = ctx.params.get("as_json")
        try:
            _check_choice(ctx)
            return super().invoke(ctx)
        except RedisQueueError as error:
            click.echo(f"error: {harmless(error)}", err=True)
            if as_json:
                show_json({"error": str(error)})
            # main() runs the group in standalone_mode=False: click sets no code.
            sys.exit(code_of(error))
        except click.ClickException as error:
            if as_json:
                show_json({"error": error.format_message()})
            raise
        except (click.Abort, KeyboardInterrupt) as error:
            if as_json:
                show_json({"error": "interrupted"})
            if isinstance(error, click.Abort):
                # The caller of the group reports it.
                raise
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED_AT_ONCE)


class UrlCommand(Command):
    """A command with ``--url``, except for a Celery app."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters: for ``celery -A app``, without those that choose a Redis or an app."""
        own = super().get_params(ctx)
        return own if _given_by_celery(ctx) else [*own, *self.store_options()]

    def store_options(self) -> list[click.Parameter]:
        """Return the options that choose the queues."""
        return [_url()]


class StoreCommand(UrlCommand):
    """A command with an Access: it has ``--url`` and ``--prefix``, except for a Celery app."""

    def store_options(self) -> list[click.Parameter]:
        """Return the options that choose the queues."""
        return [_url(), _prefix()]


def redacted(error: click.UsageError) -> click.UsageError:
    """Return *error* without passwords."""
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
        return function(ctx.meta[_STORE]["url"] if app is None else _url_of(app), *args, **kwargs)

    return wrapper


def with_store(*, timeout: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Pass a client of the Redis, which waits *timeout* seconds for each reply, and the prefix."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ctx = click.get_current_context()
            app = app_of(ctx)
            if app is not None:
                store = _access(ctx).catalog
                return function(store.client, store.prefix, *args, **kwargs)
            found = ctx.meta[_STORE]
            timeouts = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
            return function(connect(found["url"], check=False, **timeouts), found["prefix"], *args, **kwargs)

        return wrapper

    return decorate


def with_app(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the Celery app as the first argument; without an app the command is a usage error."""

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
    """Return the Celery app of the command, or None; loads that of ``--app``. Raises ConfigurationError."""
    name = ctx.meta.get(_APP)
    if name is None:
        return getattr(ctx.obj, "app", None)
    if _LOADED not in ctx.meta:
        ctx.meta[_LOADED] = _load_app(name)
    return ctx.meta[_LOADED]


def _check_choice(ctx: click.Context) -> None:
    chosen = ctx.meta.get(_CHOSEN)
    if chosen and ctx.meta.get(_APP):
        raise click.UsageError(f"give {chosen} or --app, not both: the settings of the app choose its Redis")


def _given_by_celery(ctx: click.Context) -> bool:
    return getattr(ctx.obj, "app", None) is not None


def app_option(*, hidden: bool = False) -> click.Option:
    """Return the option for a Celery app, for the group or for a command."""
    text = "Celery app whose Redis and settings are used. Imports its module."
    return click.Option(["-A", "--app"], expose_value=False, callback=_keep_app, hidden=hidden, help=text)


def _keep_app(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_APP] = value


def _url_of(app: Any) -> str:
    from redis_queue.operate.access import AppAccess  # noqa: PLC0415 - Celery takes long

    return AppAccess(app).url


def _access(ctx: click.Context) -> Access:
    from redis_queue.operate.access import AppAccess, access_to  # noqa: PLC0415 - as above

    app = app_of(ctx)
    if app is not None:
        return AppAccess(app)
    store = ctx.meta[_STORE]
    return access_to(connect(store["url"], check=False), store["prefix"])


def _keep(ctx: click.Context, parameter: click.Parameter, value: str) -> None:
    """Keep the value of an option; what is given after the command counts more than what is given before it."""
    store, name = ctx.meta.setdefault(_STORE, {}), str(parameter.name)
    if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        store[name], ctx.meta[_CHOSEN] = value, f"--{name}"
    store.setdefault(name, value)


def _option(name: str, default: str, text: str, *variables: str, hidden: bool) -> click.Option:
    return click.Option(
        [f"--{name}"],
        envvar=variables,
        default=default,
        show_default=True,
        expose_value=False,
        callback=_keep,
        hidden=hidden,
        help=text,
    )


def _url(*, hidden: bool = False) -> click.Option:
    text = "URL of the Redis. With a password, set REDIS_QUEUE_URL instead: the process list shows options."
    # The second name is that of the reference application.
    return _option("url", "redis://localhost:6379/0", text, "REDIS_QUEUE_URL", "REDIS_URL", hidden=hidden)


def _prefix(*, hidden: bool = False) -> click.Option:
    return _option("prefix", "redis_queue", "First part of every key.", "REDIS_QUEUE_PREFIX", hidden=hidden)


def chosen_by(*, hidden: bool) -> list[click.Parameter]:
    """Return the options that choose an app, or a Redis and the prefix, before a command or after it."""
    return [app_option(hidden=hidden), _url(hidden=hidden), _prefix(hidden=hidden)]


def _load_app(name: str) -> Celery:
    """Return the app that ``celery -A name`` would find. It imports, and so runs, the module.

    Raises ConfigurationError for any error there.
    """
    from celery.app.utils import find_app  # noqa: PLC0415 - Celery takes long

    try:
        app: Celery = find_app(name)
    except Exception as error:
        raise ConfigurationError(
            f"cannot load the app {name!r}: {type(error).__name__}: {redact(str(error))}"
        ) from error
    return app
