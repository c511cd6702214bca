"""Runs all checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import redis

from redis_queue.doctor.checks import access, keyspace, queues, server
from redis_queue.doctor.finding import COVERAGE, PERMIT, Finding, run
from redis_queue.doctor.server_info import Server, servers
from redis_queue.doctor.survey import survey
from redis_queue.errors import StoreError, StoreRefusedError, StoreUnavailableError
from redis_queue.store.connection import Client
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import Settings

DEFAULT_PREFIX: Final = Settings().prefix


def examine(client: Client, prefix: str = DEFAULT_PREFIX) -> list[Finding]:
    """Look at the Redis of *client* and at what stands under *prefix*; return what each check found.

    Changes nothing, and reads large queues in part. What Redis does not permit to look at is a finding. Raises
    StoreUnavailableError if Redis cannot be reached, and StoreError if it lets nobody in: a wrong password, a database
    that it does not have.
    """
    Settings(prefix=prefix)
    _knock(client)
    nodes = servers(client)
    return [*_of_servers(nodes, prefix), *_of_queues(client, nodes, prefix), *_of_broker(client)]


def _knock(client: Client) -> None:
    try:
        Scripts(client).command("PING")
    except StoreRefusedError as error:
        # A user that may not ping may still look at something.
        if not isinstance(error.__cause__, redis.exceptions.NoPermissionError):
            raise


def _of_servers(nodes: list[Server], prefix: str) -> Iterator[Finding]:
    for name, check in server.CHECKS.items():
        yield from run(name, check, nodes)
    yield from run("exposure", access.exposure, nodes)
    yield from run("encryption", access.encryption, nodes)
    yield from run("permissions", access.permissions, [(node, prefix) for node in nodes])
    for node in nodes:
        if node.withheld:
            names = ", ".join(sorted(node.withheld))
            found = f"{node.label}this Redis has no {names}: what only that tells cannot be looked at here"
            yield Finding(COVERAGE, "ok", found, "ask your provider how it is set")


def _of_queues(client: Client, nodes: list[Server], prefix: str) -> Iterator[Finding]:
    try:
        found = survey(client, nodes, prefix)
    except StoreUnavailableError:
        raise
    except StoreError as error:
        yield Finding(COVERAGE, "warning", f"no queue could be looked at: {error}", PERMIT)
        return
    for name, check in keyspace.CHECKS.items():
        yield from run(name, check, [found])
    for name, inner in queues.CHECKS.items():
        yield from run(name, inner, found.shards)
    yield from found.notes


def _of_broker(client: Client) -> Iterator[Finding]:
    for name, check in queues.BROKER_CHECKS.items():
        yield from run(name, check, [Scripts(client)])
