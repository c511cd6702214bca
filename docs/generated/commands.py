"""Reference of commands and their options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

import click

from docs.generated.tables import code, table
from redis_queue.cli import group

NAME: Final = "redis-queue"


def page() -> str:
    """Return a section for each command."""
    return "\n".join(_section(command, path) for path, command in leaves(group, ()))


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command that is not a group, and its path: the names of its groups and its own."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    else:
        yield path, command


def _section(command: click.Command, path: tuple[str, ...]) -> str:
    ctx = _context(path)
    usage = " ".join([NAME, *_words(path)])
    parameters = [each for each in command.get_params(ctx) if not getattr(each, "hidden", False)]
    options = [each for each in parameters if isinstance(each, click.Option) and "--help" not in each.opts]
    arguments = " ".join(each.make_metavar(ctx) for each in parameters if isinstance(each, click.Argument))
    title = f"## {' '.join([NAME, *path])}\n\n```text\n{usage} [OPTIONS] {arguments}".rstrip() + "\n```\n"
    return f"{title}\n{_help(command)}\n\n{table(('option', 'meaning'), [_row(each, ctx) for each in options])}\n"


def _words(path: tuple[str, ...]) -> Iterator[str]:
    """Yield the words of a call: a group such as ``queue NAME`` has its own arguments."""
    command: click.Command = group
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
        yield name
        if isinstance(command, click.Group):
            ctx = click.Context(command, info_name=name)
            yield from (each.make_metavar(ctx) for each in command.params if isinstance(each, click.Argument))


def _context(path: tuple[str, ...]) -> click.Context:
    ctx = click.Context(group, info_name=NAME)
    command: click.Command = group
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
        ctx = click.Context(command, parent=ctx, info_name=name)
    return ctx


def _help(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    return text.replace("<", "\\<").replace("*", "\\*").replace("_", "\\_")


def _row(option: click.Option, ctx: click.Context) -> tuple[str, str]:
    told = option.get_help_record(ctx)
    assert told is not None, f"{option.name} has no help text"
    names, meaning = told
    return code(names), meaning.replace("*", "\\*").replace("<", "\\<")


MAKERS: Final = {"commands": page}
