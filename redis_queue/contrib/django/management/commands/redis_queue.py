"""``manage.py redis_queue``: the commands of ``celery -A app redis-queue`` for the app of this project."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from django.core.management.base import BaseCommand

from redis_queue.cli.celery import group
from redis_queue.contrib.django import celery_app


def _without_django_options(words: Sequence[str]) -> list[str]:
    """Return *words* without the options that manage.py and django-admin handle themselves."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    return parser.parse_known_args(words)[1]


class Command(BaseCommand):
    """Passes all arguments to the command group."""

    help = "Look at delayed tasks and queues, and act on them."
    requires_system_checks: Sequence[str] | str = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Accept the arguments of the group."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run with the arguments after the command name; options such as --help are those of the group."""
        self._run(_without_django_options(argv[2:]), f"{argv[0]} {argv[1]}")

    def handle(self, *arguments: str, **options: Any) -> None:
        """Run for ``call_command("redis_queue", "stats")``."""
        self._run([*arguments, *options.get("arguments", ())], "redis_queue")

    def _run(self, arguments: Sequence[str], name: str) -> None:
        group.main(args=list(arguments), prog_name=name, obj=SimpleNamespace(app=celery_app()))
