"""The Redis of a command: ``--url`` and ``--prefix``, or the configuration of a Celery app."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click
from click.core import ParameterSource

from redis_queue.basics.logs import hide_secrets
from redis_queue.cli.output import INTERRUPTED_AT_ONCE, code_of, harmless, show_json, wants_json
from redis_queue.errors import ConfigurationError, RedisQueueError
from redis_queue.store.connection import Client, connect

if TYPE_CHECKING:
    from celery import Celery

    from redis_queue.operate.access import Access

JSON: Final = "--json"

_STORE: Final = "redis_queue.store"
_APP, _LOADED = "redis_queue.app", "redis_queue.loaded_app"

_CHOSEN: Final = "redis_queue.chosen"
"""The option of the command line that chose the Redis."""

Function = Callable[..., Any]


@contextmanager
def _json_errors(*, as_json: bool) -> Iterator[None]:
    """With *as_json*, print an error of the block as JSON, too; no error shows a password."""
    text = ""
    try:
        yield
    except RedisQueueError as error:
        text = hide_secrets(str(error))
        raise
    except click.UsageError as error:
        safe = redacted(error)
        text = safe.format_message()
        raise safe from None
    except click.ClickException as error:
        text = error.format_message()
        raise
    except (click.Abort, KeyboardInterrupt):
        text = "interrupted"
        raise
    finally:
        if as_json and text:
            show_json({"error": text})


def _keep(ctx: click.Context, parameter: click.Parameter, value: str) -> None:
    """Keep the value of an option; what is given after the command counts more than what is given before it."""
    store, name = ctx.meta.setdefault(_STORE, {}), str(parameter.name)
    if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        store[name], ctx.meta[_CHOSEN] = value, f"--{name}"
    store.setdefault(name, value)


def _keep_app(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_APP] = value


def _app(*, hidden: bool = False) -> click.Option:
    text = "Celery app whose Redis and settings are used. Imports its module."
    return click.Option(["-A", "--app"], expose_value=False, callback=_keep_app, hidden=hidden, help=text)


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


class Command(click.Command):
    """A command whose errors are one line each. With ``--json`` an error is one JSON object, too.

    Exit codes: 0 done, 1 failed, 2 invalid arguments or settings, 130 interrupted before there was a result.
    """

    #: The options that choose a Redis. Like ``--app``, they are missing for ``celery -A app``.
    redis_options: ClassVar[Sequence[Callable[[], click.Option]]] = ()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters: with those that choose an app or a Redis."""
        own = super().get_params(ctx)
        chosen = [] if _given_by_celery(ctx) else [_app(hidden=True), *(option() for option in self.redis_options)]
        return [*own, *chosen]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments."""
        as_json = JSON in args and any(parameter.name == "as_json" for parameter in self.params)
        with _json_errors(as_json=as_json):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of redis_queue becomes one line and an exit code."""
        try:
            with _json_errors(as_json=wants_json()):
                if (chosen := ctx.meta.get(_CHOSEN)) and ctx.meta.get(_APP):
                    why = "the settings of the app choose its Redis"
                    raise click.UsageError(f"give {chosen} or --app, not both: {why}")
                return super().invoke(ctx)
        except RedisQueueError as error:
            click.echo(f"error: {harmless(error)}", err=True)
            # main() runs the group in standalone_mode=False: click sets no code.
            sys.exit(code_of(error))
        except KeyboardInterrupt:
            # The caller of the group reports click's Abort.
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED_AT_ONCE)


class UrlCommand(Command):
    """A command with ``--url``."""

    redis_options = (_url,)


class StoreCommand(Command):
    """A command with an Access: it has ``--url`` and ``--prefix``."""

    redis_options = (_url, _prefix)


class Group(click.Group):
    """A group whose usage errors are JSON, too, if ``--json`` is given. Its commands have an Access."""

    command_class = StoreCommand

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments."""
        with _json_errors(as_json=JSON in args):
            return super().make_context(info_name, args, parent, **extra)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters: with those that choose an app or a Redis, except for ``celery -A app``."""
        own, hidden = super().get_params(ctx), ctx.parent is not None
        return own if _given_by_celery(ctx) else [*own, *(option(hidden=hidden) for option in (_app, _url, _prefix))]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        with _json_errors(as_json=JSON in args):
            return super().resolve_command(ctx, args)


def redacted(error: click.UsageError) -> click.UsageError:
    """Return *error* without passwords."""
    text = error.format_message()
    return error if hide_secrets(text) == text else click.UsageError(hide_secrets(text), error.ctx)


def _passing(found: Callable[[click.Context], Any]) -> Callable[[Function], Function]:
    """Return a decorator that passes what *found* returns for the context as the first argument."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(found(click.get_current_context()), *args, **kwargs)

        return wrapper

    return decorate


def _access(ctx: click.Context) -> Access:
    from redis_queue.operate.access import AppAccess, access_to  # noqa: PLC0415 - Celery takes long

    app = _app_of(ctx)
    if app is not None:
        return AppAccess(app)
    store = ctx.meta[_STORE]
    return access_to(connect(store["url"], check=False), store["prefix"])


def url_of(ctx: click.Context) -> str:
    """Return the URL of the Redis of a command."""
    from redis_queue.operate.access import AppAccess  # noqa: PLC0415 - as above

    app = _app_of(ctx)
    return str(ctx.meta[_STORE]["url"] if app is None else AppAccess(app).url)


def required_app(ctx: click.Context) -> Any:
    """Return the Celery app of a command; without one the command is a usage error."""
    app, name = _app_of(ctx), ctx.info_name
    if app is None:
        raise click.UsageError(
            f"{name} needs a Celery app: redis-queue -A APP {name}, or celery -A APP redis-queue {name}"
        )
    return app


with_access: Final = _passing(_access)
"""Pass the Access as the first argument."""

with_url: Final = _passing(url_of)
"""Pass the URL of the Redis as the first argument."""

with_app: Final = _passing(required_app)
"""Pass the Celery app as the first argument; without an app the command is a usage error."""


def with_store(*, timeout: float) -> Callable[[Function], Function]:
    """Pass a client of the Redis, which waits *timeout* seconds for each reply, and the prefix, as one argument."""

    def store_of(ctx: click.Context) -> tuple[Client, str]:
        if _app_of(ctx) is not None:
            catalog = _access(ctx).catalog
            return catalog.client, catalog.prefix
        store = ctx.meta[_STORE]
        client = connect(store["url"], check=False, socket_timeout=timeout, socket_connect_timeout=timeout)
        return client, store["prefix"]

    return _passing(store_of)


def name_of_app(ctx: click.Context) -> str | None:
    """Return what ``--app`` of the command, or of ``celery``, says."""
    found: str | None = ctx.meta.get(_APP) or ctx.find_root().params.get("app")
    return found


def _app_of(ctx: click.Context) -> Any:
    """Return the Celery app of the command, or None; loads that of ``--app``. Raises ConfigurationError."""
    name = ctx.meta.get(_APP)
    if name is None:
        return getattr(ctx.obj, "app", None)
    if _LOADED not in ctx.meta:
        ctx.meta[_LOADED] = _load_app(name)
    return ctx.meta[_LOADED]


def _given_by_celery(ctx: click.Context) -> bool:
    return getattr(ctx.obj, "app", None) is not None


def _load_app(name: str) -> Celery:
    """Return the app that ``celery -A name`` would find. It imports, and so runs, the module.

    Raises ConfigurationError for any error there.
    """
    from celery.app.utils import find_app  # noqa: PLC0415 - Celery takes long

    try:
        app: Celery = find_app(name)
    except Exception as error:
        raise ConfigurationError(
            f"cannot load the app {name!r}: {type(error).__name__}: {hide_secrets(str(error))}"
        ) from error
    return app
