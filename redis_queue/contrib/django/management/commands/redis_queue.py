"""``manage.py redis_queue``: the commands of ``celery -A app redis-queue`` for the app of this project."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from django.core.management.base import BaseCommand

from redis_queue.cli.celery import group
from redis_queue.contrib.django.project import celery_app


def _without_djangos(words: Sequence[str]) -> list[str]:
    """Leave out the options that manage.py and django-admin have read themselves, for every command."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    return parser.parse_known_args(words)[1]


class Command(BaseCommand):
    """Passes everything on."""

    help = "Look at delayed tasks and queues, and act on them."
    requires_system_checks: Sequence[str] | str = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take what the group takes."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run with what stands behind the name; options like --help are those of the group."""
        self._run(_without_djangos(argv[2:]), f"{argv[0]} {argv[1]}")

    def handle(self, *arguments: str, **options: Any) -> None:
        """Run from ``call_command("redis_queue", "stats")``."""
        self._run([*arguments, *options.get("arguments", ())], "redis_queue")

    def _run(self, arguments: Sequence[str], name: str) -> None:
        group.main(args=list(arguments), prog_name=name, obj=SimpleNamespace(app=celery_app()))
