"""Options shared by commands."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import click

from redis_queue.basics.times import When, read_time, with_zone
from redis_queue.cli.access import with_access
from redis_queue.cli.output import AS_JSON, UTC, zone
from redis_queue.errors import InvalidDelayError

MAX_ROWS: Final = 10_000

HIGHEST_PORT: Final = 65535


def _kept(name: str, entry: str, text: str, *names: str) -> Callable[[Any], Any]:
    # Before the others, whose times it gives a zone.

    def keep(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta[entry] = value

    return click.option(name, *names, is_flag=True, is_eager=True, expose_value=False, callback=keep, help=text)


def json_flag(text: str) -> Callable[[Any], Any]:
    """Return the option for JSON, with this help."""
    return _kept("--json", AS_JSON, text, "as_json")


utc: Final = _kept("--utc", UTC, "Show times in UTC, not in the local time zone.")
as_json: Final = json_flag("Print one JSON object.")
dry_run: Final = click.option("--dry-run", is_flag=True, help="Only count; change nothing.")
yes: Final = click.option("--yes", is_flag=True, help="Do not ask.")
task: Final = click.option("--task", help="Only calls of the task with this full name.")
task_part: Final = click.option("--task", "task_part", help="Only calls of tasks whose names contain this text.")
body: Final = click.option("--body", "with_body", is_flag=True, help="Show bodies and arguments, too.")

bind: Final = click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on.")
hosts: Final = click.option(
    "--host", "hosts", multiple=True, help="An allowed host name besides localhost; can be repeated."
)

Function = Callable[..., Any]


def together(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Return one decorator for *decorators*, the first one outermost."""

    def add(function: Function) -> Function:
        return functools.reduce(lambda inner, decorator: decorator(inner), reversed(decorators), function)

    return add


output: Final = together(utc, as_json, with_access)
"""Options of a command that shows times."""


def group_name(function: Function) -> Function:
    """Pass the argument NAME of the group of the command as *name*."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        group = click.get_current_context().parent
        assert group is not None  # noqa: S101 - that is what the option is made for
        return function(*args, name=group.params["name"], **kwargs)

    return wrapper


def limit(default: int = 50, maximum: int = MAX_ROWS) -> Callable[[Any], Any]:
    """Return the option for the number of rows."""
    return click.option(
        "--limit", type=click.IntRange(1, maximum), default=default, show_default=True, help="Most rows to show."
    )


def port(default: int) -> Callable[[Any], Any]:
    """Return the option for the port."""
    return click.option(
        "--port",
        type=click.IntRange(0, HIGHEST_PORT),
        default=default,
        show_default=True,
        help="Port to listen on; 0 chooses a free one.",
    )


class Number(click.FloatRange):
    """A number within bounds; NaN is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


name: Final = click.option("--name", help="Only queues with this name, of either kind.")
delay_queue: Final = click.option(
    "--delay-queue", "name", help='The DelayQueue.  [default: that of the Celery app; without an app, "scheduled"]'
)


def when(value: str) -> When:
    """Parse the value of an option for a time."""
    try:
        return read_time(with_zone(value, zone()))
    except InvalidDelayError as error:
        raise click.BadParameter(str(error)) from None
