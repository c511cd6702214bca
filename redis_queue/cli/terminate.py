"""``redis-queue terminate``: stop running tasks."""

from __future__ import annotations

from collections.abc import Iterator

import click

from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.audit import Record
from redis_queue.cli.batches import run_batches
from redis_queue.cli.confirmation import confirm, preview
from redis_queue.operate.access import Access
from redis_queue.operate.verbs import Done
from redis_queue.operate.worker_actions import app_of, find_running, stop, stoppable, subjects_of, worker_of


@click.command(cls=StoreCommand)
@click.argument("ids", nargs=-1, required=True)
@click.option("--soft", is_flag=True, help="Raise SoftTimeLimitExceeded in the tasks; they may clean up.")
@options.utc
@options.dry_run
@options.yes
@options.as_json
@with_access
def terminate(access: Access, *, ids: tuple[str, ...], soft: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Stop running tasks: each ends at once, is not run again, and its result is REVOKED.

    It needs a Celery app, and workers with the prefork, gevent or eventlet pool; --soft needs prefork. A task that has
    ended meanwhile, or runs anew, is left alone.

    Example: redis-queue -A shop terminate 6f1c7e1e-4d2b-4a6e-9f2b-000000000001
    """
    app_of(access)
    found = [find_running(access, id_) for id_ in dict.fromkeys(ids)]
    for task in found:
        problem = stoppable(worker_of(access, task.worker), soft=soft)
        if problem:
            raise click.ClickException(problem)
    subjects, past = subjects_of(found), "stopped"
    if dry_run:
        preview(past, len(found), subjects, at="since", as_json=as_json)
        return
    question = f"Stop {len(found):,} running tasks{' softly' if soft else ''}?"
    confirm(question, lambda: subjects, len(found), at="since", yes=yes)
    problems: list[str] = []

    def batches() -> Iterator[Done]:
        for part in stop(access, found, soft=soft):
            if part.problem:
                problems.append(part.problem)
            yield Done(len(part.stopped), tried=part.tried)

    def problem_of(count: int) -> str:
        left = len(found) - count
        return "; ".join(problems) or (f"{left:,} had ended" if left else "")

    record = Record(access, "terminate", [task.worker for task in found], subjects, "softly" if soft else "")
    run_batches(past, len(found), batches(), record, as_json=as_json, problem=problem_of)
