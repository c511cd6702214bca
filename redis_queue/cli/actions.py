"""Commands of actions: options, preview, question, progress and report, all made from the registry."""

from __future__ import annotations

import functools
import getpass
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click
from kombu.exceptions import OperationalError

from redis_queue.basics.waits import signal_handler
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.output import (
    INTERRUPTED,
    Stop,
    harmless,
    localized,
    progress_bar,
    report,
    show_json,
    show_table,
    wants_json,
    zone,
)
from redis_queue.errors import InvalidNameError, InvalidValueError, RedisQueueError
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Argument, Choice, Plan, Result, perform
from redis_queue.operate.actions.queues import PURGE
from redis_queue.operate.actions.rows import Rows
from redis_queue.store.ids import check_id

MAX_USER: Final = 100

AWAY: Final = "the broker cannot be read"

Function = Callable[..., Any]


def user() -> str:
    """Return the user and the host of this command, for the audit."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        # A container may run under an id without a name.
        name = f"uid {os.getuid()}"
    return f"{name[:MAX_USER]}@{socket.gethostname()[:MAX_USER]} (command line)"


@dataclass(frozen=True, slots=True)
class IdArguments:
    """Ids of the command line, each once.

    *present*: ids or a file were given, even if the file is empty. *typed*: all ids are arguments.
    """

    ids: tuple[str, ...]
    present: bool
    typed: bool

    def missing(self, noun: str) -> str:
        """Return the error if none of the ids is a *noun*; "" without ids."""
        if len(self.ids) == 1:
            return f"no {noun}: {self.ids[0]!r}"
        return f"no {noun} has any of these {len(self.ids):,} ids" if self.ids else ""


def id_arguments(function: Function) -> Function:
    """Add ids and ``--ids-file``, and pass them as *ids*; invalid ids are refused before anything is done."""

    @functools.wraps(function)
    def wrapper(*args: Any, ids: tuple[str, ...], ids_file: Any, **kwargs: Any) -> Any:
        if ids and ids_file is not None:
            raise click.UsageError("give ids, or --ids-file, not both")
        lines = ids if ids_file is None else _read(ids_file)
        found = tuple(dict.fromkeys(check_id(id_) for id_ in lines))
        return function(*args, ids=IdArguments(found, bool(ids) or ids_file is not None, bool(ids)), **kwargs)

    option = click.option(
        "--ids-file", type=click.File("r", encoding="utf-8-sig"), help='A file with one id per line; "-" for stdin.'
    )
    return click.argument("ids", nargs=-1)(option(wrapper))


def only_ids(function: Function) -> Function:
    """Add ids, at least one, and pass them as *ids*."""

    @functools.wraps(function)
    def wrapper(*args: Any, ids: tuple[str, ...], **kwargs: Any) -> Any:
        found = tuple(dict.fromkeys(check_id(id_) for id_ in ids))
        return function(*args, ids=IdArguments(found, present=True, typed=False), **kwargs)

    return click.argument("ids", nargs=-1, required=True)(wrapper)


def rows_command(
    action: Action, chosen: Callable[[Function], Function], *choices: Callable[[Function], Function]
) -> click.Command:
    """Return the command of an action on rows: *chosen* adds the ids, *choices* the conditions and the scope."""

    def run(access: Access, *, dry_run: bool, yes: bool, **values: Any) -> None:
        ids, only, everything = values.pop("ids"), values.pop("only", None), values.pop("everything", False)
        _check_chosen(action, ids, only, everything=everything)
        choice = Choice(
            *_scope_and_arguments(action, values),
            ids=ids.ids if ids.present else None,
            conditions=only,
            exact=dry_run,
            at=access.inspector.now(),
        )
        rows = action.target
        assert isinstance(rows, Rows)  # noqa: S101 - that is what the command is made for
        plan = action.target.plan(action, access, choice)
        if plan.nothing:
            raise click.ClickException(harmless(plan.nothing))
        if not plan.tries and only:
            click.echo(harmless("".join(plan.report.no_match((rows.noun, rows.plural), only))), err=True)
        if dry_run:
            preview(action, plan, error=plan.report.faults.text())
            return
        if plan.tries and (action.destroys or not ids.typed):
            confirm(action, plan, yes=yes)

        def problem(total: Result) -> str:
            left = f"{total.left(plan):,} left out: {plan.gone}" if rows.complete and total.left(plan) else ""
            none = "" if total.count else ids.missing(rows.noun)
            return plan.report.faults.text() or "; ".join(total.reasons) or none or left

        carry_out(access, action, plan, problem=problem)

    all_ = [click.option("--all", "everything", is_flag=True, help="All of them.")] if action.takes_all else []
    return _command(action, run, chosen, *all_, *choices)


def one_command(
    action: Action,
    *choices: Callable[[Function], Function],
    document: Callable[[Access, Mapping[str, Any]], Mapping[str, Any]] | None = None,
    name: str = "",
    previews: bool = False,
) -> click.Command:
    """Return the command of an action on the one thing that *choices* name.

    With *document* it prints the result in words, or as JSON what *document* returns. Then it neither asks nor
    previews, unless *previews* is set.
    """

    def run(access: Access, *, dry_run: bool = False, yes: bool = False, **values: Any) -> None:
        choice = Choice(*_scope_and_arguments(action, values))
        plan = action.target.plan(action, access, choice)
        if plan.nothing and not plan.count:
            report(_name(action, dry_run=dry_run), 0, error=plan.nothing)
        elif dry_run:
            preview(action, plan)
        elif document is None:
            if action.destroys:
                confirm(action, plan, yes=yes)
            carry_out(access, action, plan, problem=lambda total: plan.gone if total.left(plan) else "")
        else:
            if previews:
                _show_warnings(plan)
            total = act(access, action, plan)
            if wants_json():
                show_json(document(access, choice.scope))
            else:
                click.echo(harmless(localized(total.text)))

    return _command(action, run, *choices, name=name, asks=previews or document is None)


def _scope_and_arguments(action: Action, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of options that belong to the scope of *action*, and the others."""
    scope = {name: value for name, value in values.items() if name in action.target.scope}
    return scope, {name: value for name, value in values.items() if name not in scope}


def broker_errors(function: Function) -> Function:
    """Turn errors of the broker into one line."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except OperationalError as error:
            text = harmless(error)
            raise click.ClickException(text if AWAY in text else f"{AWAY}: {text}") from error

    return wrapper


def purge(access: Access, scope: Mapping[str, Any], *, dry_run: bool, yes: bool) -> None:
    """Ask, then delete the items of *scope*; queues that cannot be read are reported at the end."""
    plan = PURGE.target.plan(PURGE, access, Choice(scope))
    if dry_run:
        report("to_be_deleted", plan.count, error=plan.report.faults.text())
        return
    confirm(PURGE, plan, yes=yes)
    carry_out(access, PURGE, plan, problem=lambda _: plan.report.faults.text())


purge_command: Final = options.together(options.name, options.dry_run, options.yes, options.as_json, with_access)
"""Options of a command that purges queues."""


def confirm(action: Action, plan: Plan, *, yes: bool) -> None:
    """Go on only with ``--yes`` or after a yes on a terminal. The question shows the first subjects."""
    if yes:
        return
    question = harmless(f"{plan.question}?")
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal for the question: add --yes")
    _show_subjects(plan, action.target.at, err=True)
    _show_effect(plan)
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was done")


def preview(action: Action, plan: Plan, *, error: str = "") -> None:
    """Print the preview of a change: the count, the first subjects, and its effect on stderr."""
    at = action.target.at
    if not wants_json():
        _show_subjects(plan, at)
        if plan.changes:
            _show_warnings(plan)
            _show_effect(plan)
    first = [
        {"id": subject.id, "queue": subject.queue, f"{at}_at": subject.at, "task": subject.task or None}
        for subject in plan.subjects
    ]
    report(_name(action, dry_run=True), plan.count, error=error, more={"first": first} if at else None)


def act(access: Access, action: Action, plan: Plan) -> Result:
    """Do at once what *plan* says, and return the result."""
    total = Result()
    perform(access, action, plan, user(), total)
    warn(total)
    return total


def carry_out(access: Access, action: Action, plan: Plan, *, problem: Callable[[Result], str] = lambda _: "") -> None:
    """Do what *plan* says, with a progress bar, and report how many were changed, however it ended.

    An interruption ends the work after the current batch. *problem* returns what to report although no call failed.
    """
    stop, total, interrupted, error = Stop(), Result(), False, ""
    tries = plan.tries or plan.count
    _show_warnings(plan)
    with progress_bar(action.past) as show, signal_handler(stop):

        def go_on() -> bool:
            show(total.tried, tries)
            # After the last batch there is nothing left to interrupt.
            return not (stop.requested and total.tried < tries)

        try:
            perform(access, action, plan, user(), total, go_on)
            interrupted = stop.requested and total.tried < tries
        except RedisQueueError as failure:
            if total.refused(failure):
                raise
            error = str(failure)
        except KeyboardInterrupt:
            # What the last batch did is not counted.
            interrupted = True
    warn(total)
    error = INTERRUPTED if interrupted else error or problem(total)
    report(_name(action, dry_run=False), total.count, error=error)


def _command(
    action: Action, run: Function, *choices: Callable[[Function], Function], name: str = "", asks: bool = True
) -> click.Command:
    arguments = [_option(argument) for argument in action.arguments]
    flags = [options.utc, options.dry_run, options.yes] if asks else []
    add = options.together(*choices, *arguments, *flags, options.as_json)
    return click.command(name or action.verb, cls=StoreCommand, help=action.help)(with_access(broker_errors(add(run))))


class _Value(click.ParamType):  # type: ignore[type-arg]  # older versions are not generic
    """The value of an argument of an action."""

    def __init__(self, argument: Argument) -> None:
        self.name = argument.metavar
        self._argument = argument

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; an invalid one is a usage error."""
        if not isinstance(value, str):
            return value
        try:
            return self._argument.value(value, zone())
        except InvalidValueError as error:
            self.fail(str(error), param, ctx)


def _option(argument: Argument) -> Callable[[Function], Function]:
    if argument.is_positional:
        return click.argument(argument.name, type=_Value(argument), metavar=argument.metavar)
    name = argument.option or f"--{argument.name.replace('_', '-')}"
    if argument.is_flag:
        return click.option(name, argument.name, is_flag=True, help=argument.help)
    return click.option(
        name,
        argument.name,
        type=_Value(argument),
        required=bool(argument.missing),
        metavar=argument.metavar,
        help=argument.help,
    )


def _check_chosen(action: Action, ids: IdArguments, only: Any, *, everything: bool) -> None:
    """Raise UsageError unless ids, conditions or all are given, and only one of them."""
    if sum((ids.present, bool(only), everything)) != 1:
        all_ = ", or --all" if action.takes_all else "; purge deletes all"
        raise click.UsageError(f"give ids, or conditions like --task{all_}")


def _name(action: Action, *, dry_run: bool) -> str:
    return f"{'to_be_' if dry_run else ''}{action.past.replace(' ', '_')}"


def warn(total: Result) -> None:
    """Tell what is wrong although the action is done."""
    if total.unwritten:
        click.echo(f"warning: not written to the audit: {harmless(total.unwritten)}", err=True)
    if total.maybe_sent:
        click.echo(total.maybe_sent_text, err=True)


def _show_warnings(plan: Plan) -> None:
    for warning in plan.warnings:
        click.echo(harmless(warning), err=True)


def _show_effect(plan: Plan) -> None:
    if plan.changes:
        show_table(("", "now", "new"), plan.changes, err=True)
    if plan.text:
        click.echo(harmless(localized(plan.text)), err=True)


def _show_subjects(plan: Plan, at: str, *, err: bool = False) -> None:
    """Print the first of the items of *plan*, each with its task and time."""
    if not plan.subjects:
        return
    heads = ("id", "queue", *([at] if at else []), "task")
    rows = [
        (subject.id, subject.queue, *([subject.at] if at else []), subject.task or None) for subject in plan.subjects
    ]
    show_table(heads, rows, keep=("id", at), below=("task",), err=err)
    if plan.count > len(plan.subjects):
        click.echo(f"and {plan.count - len(plan.subjects):,} more", err=err)


def _read(file: Iterable[str]) -> Iterator[str]:
    number = 0
    try:
        for number, line in enumerate(file, 1):  # noqa: B007 - the error names it
            if id_ := line.strip():
                yield check_id(id_)
    except UnicodeDecodeError:
        raise InvalidNameError(f"--ids-file: not UTF-8 at or after line {number + 1}; nothing was done") from None
    except InvalidNameError as error:
        raise InvalidNameError(f"--ids-file: line {number}: {error}; nothing was done") from None
