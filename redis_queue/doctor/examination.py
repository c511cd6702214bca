"""Run all checks of the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import redis

from redis_queue.doctor.checks import access, keyspace, queues, server
from redis_queue.doctor.finding import COVERAGE, PERMIT, Finding, run
from redis_queue.doctor.server_info import ServerInfo, servers
from redis_queue.doctor.survey import survey
from redis_queue.errors import StoreError, StoreRefusedError, StoreUnavailableError
from redis_queue.store.connection import Client
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import Settings

DEFAULT_PREFIX: Final = Settings().prefix


def examine(client: Client, prefix: str = DEFAULT_PREFIX) -> list[Finding]:
    """Check the Redis of *client* and the queues under *prefix*; return the findings of each check.

    Changes nothing, and reads only samples of large queues. Missing permissions are findings. Raises
    StoreUnavailableError if Redis cannot be reached, and StoreError if the login fails: for a wrong password or an
    unknown database.
    """
    Settings(prefix=prefix)
    _check_login(client)
    nodes = servers(client)
    return [*_of_servers(nodes, prefix), *_of_queues(client, nodes, prefix), *_of_broker(client)]


def _check_login(client: Client) -> None:
    try:
        Scripts(client).command("PING")
    except StoreRefusedError as error:
        # A user without PING may still have permissions for some checks.
        if not isinstance(error.__cause__, redis.exceptions.NoPermissionError):
            raise


def _of_servers(nodes: list[ServerInfo], prefix: str) -> Iterator[Finding]:
    for name, check in server.CHECKS.items():
        yield from run(name, check, nodes)
    yield from run("exposure", access.exposure, nodes)
    yield from run("encryption", access.encryption, nodes)
    yield from run("permissions", access.permissions, [(node, prefix) for node in nodes])
    for node in nodes:
        if node.missing:
            names = ", ".join(sorted(node.missing))
            found = f"{node.label}this Redis has no {names}: checks that need it are skipped"
            yield Finding(COVERAGE, "ok", found, "ask your provider for these settings")


def _of_queues(client: Client, nodes: list[ServerInfo], prefix: str) -> Iterator[Finding]:
    try:
        found = survey(client, nodes, prefix)
    except StoreUnavailableError:
        raise
    except StoreError as error:
        yield Finding(COVERAGE, "warning", f"no queue could be checked: {error}", PERMIT)
        return
    for name, check in keyspace.CHECKS.items():
        yield from run(name, check, [found])
    for name, inner in queues.CHECKS.items():
        yield from run(name, inner, found.shards)
    yield from found.notes


def _of_broker(client: Client) -> Iterator[Finding]:
    for name, check in queues.BROKER_CHECKS.items():
        yield from run(name, check, [Scripts(client)])
