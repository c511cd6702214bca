"""The Python blocks of the pages run, and commands and options in them exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from celery import Celery
from celery.bin.worker import worker

from redis_queue.cli import celery as celery_cli
from redis_queue.cli import group
from tests.docs.blocks import DOCS, Block, blocks, matches, pages
from tests.docs.run_blocks import runnable
from tests.support.paths import ROOT
from tests.support.servers import RedisServer

CALL = re.compile(
    r"(?:^|[\s=/`])((?:redis-queue|python -m redis_queue|celery -A [\w.:]+ (?:redis-queue|worker))\b[^`\n]*)"
)
SKELETON = re.compile(r"[<>…]|\[-")


def test_the_python_in_all_pages_runs() -> None:
    told = [page for page in pages() if runnable(page) and page.stem not in {"tutorial", "django-tasks"}]
    assert len(told) > 3
    with RedisServer(tcp=True) as server:
        command = [sys.executable, "-m", "tests.docs.run_blocks", server.url, *map(str, told)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr


def test_blocks_that_are_not_run_give_a_reason() -> None:
    for page in pages():
        for block in blocks(page):
            assert block.mark != "not run" or len(block.detail) > 10, f"{page.name}, line {block.line}"


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the calls of redis-queue and of workers in a block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for found in CALL.findall(line.partition("  #")[0]):
            if not SKELETON.search(found):
                yield shlex.split(re.split(r"\s[|&>]|;", found)[0])


def check(words: list[str]) -> None:
    """Raise AssertionError for an unknown command or option."""
    told = " ".join(words)
    command: click.Command = group
    if words[0] == "celery":
        command, words = (worker, words[4:]) if words[3] == "worker" else (celery_cli.group, words[4:])
        # Options that an app with DurableTasks adds.
        words = [word for word in words if word not in ("--without-dispatch", "--beat", "-B")]
        parent = click.Context(click.Command("celery"), obj=SimpleNamespace(app=Celery(set_as_current=False)))
    else:
        words = words[3:] if words[0] == "python" else words[1:]
        parent = click.Context(click.Command("outer"))
    try:
        while isinstance(command, click.Group):
            context = command.make_context(command.name, list(words), parent=parent)
            _, found, words = command.resolve_command(context, [*context._protected_args, *context.args])
            assert found is not None
            command = found
            parent = context
        with command.make_context(command.name, list(words), parent=parent):
            pass
    except click.UsageError as error:
        raise AssertionError(f"{told}: {error.format_message()}") from error


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(DOCS)))
def test_the_commands_of_a_page_exist(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("waiting.jsonl").touch()
    for block in blocks(page):
        if block.language in ("sh", "yaml", "ini", "text") and "[OPTIONS]" not in block.text:
            for words in commands(block):
                check(words)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(DOCS)))
def test_no_sentence_or_table_has_an_unknown_command(page: Path) -> None:
    for code in re.findall(r"(?<!`)`((?:redis-queue|celery -A \w+ redis-queue) [^`\n]+)`", page.read_text("utf-8")):
        for words in commands(Block("sh", code, 1)):
            try:
                check(words)
            except AssertionError as error:  # a sentence may leave out arguments
                assert not re.search("No such (command|option)", str(error)), error  # noqa: PT017


def test_a_wrong_option_is_found() -> None:
    for line in ("redis-queue stats --josn", "celery -A shop redis-queue scheduled cancel --al", "redis-queue nothing"):
        (words,) = commands(Block("sh", line, 1))
        with pytest.raises(AssertionError, match=re.escape(line)):
            check(words)


def test_expected_output_is_compared_line_by_line() -> None:
    assert matches("a  b\n…c…\n", "x\na b\n1 c 2\n")
    assert not matches("a\nb\n", "b\na\n")
    assert not matches("a\n", "ab\n")
