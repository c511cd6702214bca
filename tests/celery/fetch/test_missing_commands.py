"""A Redis without some commands: a worker does without what it does not need for a promise, and says so."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import pytest
from celery import Celery

from redis_queue.celery import DurableTasks
from redis_queue.store.commands import DELAYS, LEASES
from tests.support.celery.full_names import ADD, AGAIN, RAN
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

LIVED_WITH: dict[str, tuple[str, ...]] = {
    "CLIENT": ("atomic fetch is off", "this Redis has no CLIENT"),
    # The server does not tell what it lacks.
    "COMMAND CLIENT INFO CONFIG": ("atomic fetch is off", "unknown command 'CLIENT'", "the store cannot be checked"),
    "SUBSCRIBE MGET EXISTS LRANGE LTRIM ZREMRANGEBYSCORE": (
        "atomic fetch is off",
        "this Redis has no EXISTS, LRANGE, LTRIM, MGET, SUBSCRIBE, ZREMRANGEBYSCORE",
        "no wake-ups",
    ),
    "HSCAN HRANDFIELD HSTRLEN EXPIRE UNLINK": ("cannot write reports",),
    # redis-py begins with it, unless the URL has protocol=2.
    "HELLO": (),
}
"""Commands that a Redis may lack, and what a worker says once."""


def renamed(commands: Iterable[str]) -> RedisServer:
    """Return a server without *commands*."""
    return RedisServer(*(word for name in commands for word in ("--rename-command", name, "")))


class TestMissingCommands:
    """A provider may rename commands away, and other products have fewer: what needs them is off."""

    def worker(self, server: RedisServer, notes: RedisServer, *, stock: bool = False) -> CeleryProcess:
        return CeleryProcess(
            *("-A", "tests.support.celery.full_app", "worker", "--pool", "threads", "--loglevel", "INFO"),
            *("--without-gossip", "--without-mingle"),
            environment={
                "BROKER_URL": f"redis+socket://{server.socket}?protocol=2",
                "STORE_URL": f"{server.url}&protocol=2",
                "NOTES_URL": notes.url,
                "ATOMIC_FETCH": "1",
                "STOCK": str(int(stock)),
            },
            beat=False,
        )

    def run(self, server: RedisServer, notes: RedisServer, *said: str, stock: bool = False) -> str:
        """Run tasks of all kinds on a worker, and return its output once it has said each of *said*."""
        broker = f"redis+socket://{server.socket}?protocol=2"
        with (
            closing(Celery("full", broker=broker, set_as_current=False)) as app,
            self.worker(server, notes, stock=stock).ready() as worker,
            notes.client() as runs,
        ):
            runs.delete(RAN)
            app.conf.update(redis_queue_url=f"{server.url}&protocol=2", task_default_queue="full")
            if not stock:
                DurableTasks(app, leases=False)
            ids = [app.send_task(ADD).id for _ in range(3)]
            ids += [app.send_task(name, args, countdown=0.1).id for name, args in ((ADD, ()), (AGAIN, (0.1,)))]
            wait_until(lambda: runs.llen(RAN) >= len(ids), description="the tasks to run")
            assert sorted(row.decode() for row in runs.lrange(RAN, 0, -1)) == sorted(ids)
            for text in said:
                worker.wait_for_output(text)
            assert worker.finish() == 0
            return worker.output

    @pytest.mark.parametrize("missing", LIVED_WITH)
    def test_tasks_run_without_those_that_celery_does_not_need(self, missing: str, notes: RedisServer) -> None:
        with renamed(missing.split()) as server:
            output = self.run(server, notes, *LIVED_WITH[missing])
        for text in (*LIVED_WITH[missing], "Traceback", " ERROR", " CRITICAL"):
            assert output.count(text) == (text in LIVED_WITH[missing])
        assert ("atomic fetch is off" in output) == ("atomic fetch is off" in LIVED_WITH[missing])

    def test_a_promise_that_cannot_be_kept_ends_the_worker_on_startup(self, notes: RedisServer) -> None:
        needed = sorted(name.upper() for name in DELAYS.commands)
        with renamed(needed) as server, self.worker(server, notes) as worker:
            assert worker.wait() != 0
            found = f"redis_queue_url: this Redis has no {', '.join(needed)}, which delayed tasks need"
            assert worker.output.count(found) > 0
        with renamed(["ZMSCORE"]) as server, self.worker(server, notes) as worker:
            assert worker.wait() != 0
            assert "broker_url: this Redis has no ZMSCORE, which leases need" in worker.output

    def test_no_other_command_is_sent(self, notes: RedisServer) -> None:
        """A new command of a worker belongs into one of the lists."""
        sent: dict[bool, set[str]] = {}
        for stock in (True, False):
            with renamed(()) as server, server.client() as client:
                self.run(server, notes, stock=stock)
                names = client.info("commandstats")
                sent[stock] = {name.removeprefix("cmdstat_").partition("|")[0].upper() for name in names}
        known = {name for missing in LIVED_WITH for name in missing.split()}
        needed = {name.upper() for name in DELAYS.commands | LEASES.commands}
        assert sent[False] - sent[True] - known - needed == set()
        # Of these Celery sends none; the client of this test begins with HELLO.
        assert known & sent[True] == {"HELLO"}
