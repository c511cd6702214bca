"""Load the scripts of redis_queue into the script cache of a server, for Redis users without EVAL."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

import redis

from redis_queue.errors import StoreError
from redis_queue.store.connection import Client
from redis_queue.store.redis_errors import RedisErrors, translate
from redis_queue.store.scripts import Script, load

_LUA: Final = files("redis_queue").joinpath("lua")


def all_scripts() -> list[Script]:
    """Return every script, by name."""
    return [
        load(f"{folder.name}/{entry.name.removesuffix('.lua')}")
        for folder in sorted(_LUA.iterdir(), key=lambda folder: folder.name)
        if folder.is_dir()
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".lua")
    ]


def load_scripts(client: Client) -> int:
    """Load the scripts that the server of *client* or a node of its Cluster lacks; return how many there were.

    Redis forgets scripts when it restarts and at SCRIPT FLUSH, and a promoted replica may never have had them. Loads
    into all nodes that can be reached, then raises StoreError for the first one that failed.
    """
    loaded: set[str] = set()
    failed: StoreError | None = None
    for node in _nodes(client):
        try:
            for script in missing_scripts(node):
                node.script_load(script.source)
                loaded.add(script.name)
        except RedisErrors as error:
            failed = failed or translate(error)
            failed.__cause__ = failed.__cause__ or error
    if failed is not None:
        raise failed
    return len(loaded)


def missing_scripts(node: redis.Redis) -> list[Script]:
    """Return the scripts that one server lacks. Raises the errors of redis-py."""
    scripts = all_scripts()
    known = node.script_exists(*(script.sha for script in scripts))
    return [script for script, flag in zip(scripts, known, strict=True) if not flag]


def _nodes(client: Client) -> list[redis.Redis]:
    # The replicas of a Cluster, too: each may be promoted.
    if not isinstance(client, redis.RedisCluster):
        return [client]
    return [client.get_redis_connection(node) for node in client.get_nodes()]
